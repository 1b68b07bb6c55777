"""CUPTI's activity records: what NVIDIA's profilers stand on, read as soon as they are there.

The vendor's package cupti-python turns records on and knows how they lie in memory. It makes a Python object of each,
which took 70 us a record (version 13.0.1); a row has about a hundred. So the library hands its buffers to functions
here, which read three numbers and a name of each record.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opatlas.instruments.instrument import InstrumentMissing, MeasureSettings
from opatlas.instruments.kernel_records import MARK, KernelRecord, KernelRecords
from opatlas.model.errors import ReplayError

NAME = "cupti"

#: Holds the records of a thousand kernels; the library asks for another one when it is full.
_BUFFER_BYTES = 1 << 18
_MAX_LIMIT_REACHED = 12
#: How often the instrument tries itself when it is opened.
_MARKS = 4

_NUMBER = struct.Struct("<I")
#: What is read of a record, in the order in which it lies there.
_FIELDS = {"start": "Q", "end": "Q", "correlation_id": "I", "name": "Q"}
_REQUESTED = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_COMPLETED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


@dataclass(frozen=True)
class Layout:
    """Where a kind of record has what is read of it.

    Attributes:
        fields: its start, its end, the number of its launch, and where it has a name that name's address.
        what: is its name where it has none.
    """

    fields: struct.Struct
    what: str

    @classmethod
    def of(cls, offsets: Mapping[str, int], what: str) -> Layout:
        """From the offset of each field in bytes. Raises InstrumentMissing where one is missing, or out of order."""
        form, at = "<", 0
        for name, code in _FIELDS.items():
            if name == "name" and name not in offsets:
                continue
            if offsets.get(name, -1) < at:
                raise InstrumentMissing(
                    f"this version of cupti-python tells of another record of a {what} than is known"
                )
            form += f"{offsets[name] - at}x{code}"
            at = offsets[name] + struct.calcsize(f"<{code}")
        return cls(struct.Struct(form), what)

    def read(self, memory: bytes, at: int, names: dict[int, str]) -> KernelRecord:
        """The record at an offset; `names` holds those that were read before, by their address."""
        start, end, correlation_id, *address = self.fields.unpack_from(memory, at)
        name = self.what
        if address:
            name = names.get(address[0]) or names.setdefault(address[0], ctypes.string_at(address[0]).decode())
        # Launches are numbered in the order in which the host made them, whatever their streams.
        return KernelRecord(correlation_id, name, (end - start) / 1000)


class CuptiRecorder:
    """Records of the kernels, copies and fills of this process."""

    name = NAME

    def __init__(self, synchronize: Callable[[], None]) -> None:
        """`synchronize` waits for everything that was launched.

        Raises:
            InstrumentMissing: the package or the library is not there, or somebody else has its records.
        """
        try:
            from cupti import cupti

            # The library is loaded by its first call.
            cupti.get_timestamp()
        except Exception as error:  # whatever its loader raises where a library is not there, or too old
            raise InstrumentMissing(
                f"cupti-python does not work here ({type(error).__name__}: {error}): "
                f"pip install 'opatlas[cuda]', in the version of torch's CUDA"
            ) from error
        self._cupti: Any = cupti
        self._synchronize = synchronize
        self._kinds = _kinds(cupti)
        self._layouts = _layouts(cupti)
        self._records: list[KernelRecord] = []
        self._names: dict[int, str] = {}
        self._broken = ""
        self._buffers: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._free: list[int] = []
        self._library = _library()
        # They must live as long as the library calls them.
        self._callbacks = _REQUESTED(self._requested), _COMPLETED(self._completed)
        self.register()

    def register(self) -> None:
        """Asks for the process's records, which the last one who asks gets. Raises InstrumentMissing."""
        status = self._library.cuptiActivityRegisterCallbacks(*self._callbacks)
        if status:
            raise InstrumentMissing(f"CUPTI gives its records to nobody here (status {status}): is a profiler running?")

    @contextmanager
    def recording(self) -> Iterator[Callable[[], Iterable[KernelRecord]]]:
        self._records.clear()
        # Another kernel may come to lie where one was unloaded.
        self._names.clear()
        for kind in self._kinds.values():
            self._cupti.activity_enable(kind)
        try:
            yield self._read
        finally:
            for kind in self._kinds.values():
                self._cupti.activity_disable(kind)

    def _read(self) -> Iterable[KernelRecord]:
        self._synchronize()
        # Everything has ended, so that no record is left out for being incomplete.
        self._cupti.activity_flush_all(0)
        if self._broken:
            raise ReplayError(f"CUPTI's records cannot be read: {self._broken}")
        return self._records

    def _requested(self, buffer: Any, size: Any, most_records: Any) -> None:
        """Called by the library, also on threads of its own."""
        if not self._free:
            made = ctypes.create_string_buffer(_BUFFER_BYTES + 8)
            address = -(-ctypes.addressof(made) // 8) * 8
            self._buffers[address] = made
            self._free.append(address)
        buffer[0], size[0], most_records[0] = self._free.pop(), _BUFFER_BYTES, 0

    def _completed(self, context: int, stream: int, buffer: int, size: int, valid: int) -> None:
        """Called by the library; what a function that C calls raises would only be printed."""
        try:
            memory, names, layouts = ctypes.string_at(buffer, valid), self._names, self._layouts
            next_record, record = self._library.cuptiActivityGetNextRecord, ctypes.c_void_p(None)
            arguments = ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)
            while valid:
                status = next_record(*arguments)
                if status == _MAX_LIMIT_REACHED:
                    break
                if status or record.value is None:
                    raise ValueError(f"status {status}")
                at = record.value - buffer
                layout = layouts.get(*_NUMBER.unpack_from(memory, at))
                if layout is not None:
                    self._records.append(layout.read(memory, at, names))
        except Exception as error:
            self._broken = f"{type(error).__name__}: {error}"
        finally:
            self._free.append(buffer)


def _kinds(cupti: Any) -> Mapping[str, Any]:
    """The kinds of records that are asked for, by what the package's structures call them."""
    kinds = cupti.ActivityKind
    return {"kernel": kinds.CONCURRENT_KERNEL, "memcpy": kinds.MEMCPY, "memset": kinds.MEMSET}


def _layouts(cupti: Any) -> Mapping[int, Layout]:
    """By kind. The structures of later versions of a record hold more at their end; the package knows them all."""
    layouts = {}
    for what, kind in _kinds(cupti).items():
        versions = [
            (int(found[1] or 0), getattr(cupti, name))
            for name in dir(cupti)
            if (found := re.fullmatch(rf"activity_{what}(\d*)_dtype", name))
        ]
        if not versions:
            raise InstrumentMissing(
                f"this version of cupti-python does not tell how a record of a {what} lies in memory"
            )
        fields = max(versions, key=lambda version: version[0])[1].fields
        layouts[int(kind)] = Layout.of({name: at for name, (_, at, *_) in fields.items()}, what)
    return layouts


def _library() -> Any:
    """The library that the package has loaded, and torch before it."""
    loaded = {
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if re.search(r"/libcupti\.so[.\d]*$", line)
    }
    if len(loaded) != 1:
        raise InstrumentMissing(f"one CUPTI library is needed, and this process has {sorted(loaded) or 'none'}")
    return ctypes.CDLL(loaded.pop())


def open_cupti(settings: MeasureSettings) -> KernelRecords:
    """On the GPU that this process has opened. Raises InstrumentMissing."""
    recorder = CuptiRecorder(torch.cuda.synchronize)
    with recorder.recording() as records:
        for _ in range(_MARKS):
            torch.cuda._sleep(1)
        found = list(records())
    if len(found) != _MARKS or not all(MARK in record.name and 0 < record.duration_us < 1e3 for record in found):
        raise InstrumentMissing(f"CUPTI's records of {_MARKS} kernels that were launched are {found}")
    return KernelRecords(recorder, lambda: torch.cuda._sleep(1), torch.cuda.synchronize)
