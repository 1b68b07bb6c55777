"""Reads CUPTI's activity records, on which NVIDIA's profilers are based, directly from memory.

The vendor's package cupti-python enables records and describes their layout. It creates a Python object for each
record, which took 70 us (version 13.0.1), and a row has about a hundred records. Therefore the callbacks in this
file receive the library's buffers and read three numbers and a name of each record.
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

from opatlas.row.errors import ReplayError
from opatlas.run.devices.device import InstrumentMissing
from opatlas.run.instruments.instrument import MeasureSettings, callback
from opatlas.run.instruments.kernel_records import MARK, WRAP_NS, KernelRecord, KernelRecords

NAME = "cupti"

#: Size of a buffer in bytes, enough for the records of a thousand kernels. The library requests another one when it is
#: full.
_BUFFER_BYTES = 1 << 18
#: Status of cuptiActivityGetNextRecord after the last record of a buffer.
MAX_LIMIT_REACHED = 12
#: Number of kernels that test the instrument when it is opened.
_MARKS = 4

_NUMBER = struct.Struct("<I")
#: Fields that are read of a record, in their order in memory, with their format.
_FIELDS = {"start": "Q", "end": "Q", "correlation_id": "I", "name": "Q"}
_REQUESTED = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_COMPLETED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


@dataclass(frozen=True)
class Layout:
    """The layout of a kind of record.

    Attributes:
        fields: format of start, end, number of the launch, and address of the name, if the record has a name.
        kind: the name of records without a name.
    """

    fields: struct.Struct
    kind: str

    @classmethod
    def of(cls, offsets: Mapping[str, int], kind: str) -> Layout:
        """Creates the layout from the offset of each field in bytes.

        Raises:
            InstrumentMissing: a field is missing, or the fields have another order.
        """
        form, at = "<", 0
        for name, code in _FIELDS.items():
            if name == "name" and name not in offsets:
                continue
            if offsets.get(name, -1) < at:
                raise InstrumentMissing(f"cupti-python has an unknown record of a {kind}: install another version")
            form += f"{offsets[name] - at}x{code}"
            at = offsets[name] + struct.calcsize(f"<{code}")
        return cls(struct.Struct(form), kind)

    def read(self, memory: bytes, at: int, names: dict[int, str]) -> KernelRecord:
        """Reads the record at an offset.

        Args:
            memory: a buffer of records.
            at: offset in bytes.
            names: names read before, by address.
        """
        start, end, correlation_id, *address = self.fields.unpack_from(memory, at)
        name = self.kind
        if address:
            name = names.get(address[0]) or names.setdefault(address[0], ctypes.string_at(address[0]).decode())
        # Launches are numbered in the order in which the host made them, whatever their streams.
        return KernelRecord(correlation_id, name, start % WRAP_NS / 1000, (end - start) / 1000)


class CuptiRecorder:
    """Records the kernels, copies and fills of this process."""

    name = NAME

    def __init__(self, synchronize: Callable[[], None]) -> None:
        """
        Args:
            synchronize: waits until all launched work has ended.

        Raises:
            InstrumentMissing: the package or the library is missing, or another profiler receives the records.
        """
        try:
            from cupti import cupti

            # Loads the library.
            cupti.get_timestamp()
        except Exception as error:  # the loader raises various errors for a missing or old library
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
        # Whether the library's buffers may hold records of the last recording, such as those of a call that raised.
        self._may_be_left = False
        self._buffers: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._free: list[int] = []
        self._library = loaded_library()
        # Referenced here, because the library calls them later.
        self._callbacks = _REQUESTED(self._requested), _COMPLETED(self._completed)
        self.register()

    def register(self) -> None:
        """Requests the process's records; CUPTI delivers records to the last requester. Raises InstrumentMissing."""
        status = self._library.cuptiActivityRegisterCallbacks(*self._callbacks)
        if status:
            raise InstrumentMissing(f"CUPTI refuses to deliver records (status {status}): is a profiler running?")

    @contextmanager
    def recording(self) -> Iterator[Callable[[], Iterable[KernelRecord]]]:
        if self._may_be_left:
            self._cupti.activity_flush_all(0)
        self._records.clear()
        self._broken = ""
        # A new kernel may get the address of an unloaded kernel.
        self._names.clear()
        for kind in self._kinds.values():
            self._cupti.activity_enable(kind)
        self._may_be_left = True
        try:
            yield self._read
        except BaseException:
            self._may_be_left = True
            raise
        finally:
            for kind in self._kinds.values():
                self._cupti.activity_disable(kind)

    def _read(self) -> Iterable[KernelRecord]:
        self._synchronize()
        # No record is incomplete, because all work has ended.
        self._cupti.activity_flush_all(0)
        self._may_be_left = False
        if self._broken:
            raise ReplayError(f"CUPTI's records cannot be read: {self._broken}")
        return self._records

    @callback
    def _requested(self, buffer: Any, size: Any, most_records: Any) -> None:
        """Provides a buffer."""
        if not self._free:
            made = ctypes.create_string_buffer(_BUFFER_BYTES + 8)
            address = -(-ctypes.addressof(made) // 8) * 8
            self._buffers[address] = made
            self._free.append(address)
        buffer[0], size[0], most_records[0] = self._free.pop(), _BUFFER_BYTES, 0

    @callback
    def _completed(self, context: int, stream: int, buffer: int, size: int, valid: int) -> None:
        """Reads the records of a buffer; exceptions must not leave this function.

        Args:
            buffer: the address of the buffer.
            valid: the number of its bytes that hold records.
        """
        try:
            memory, names, layouts = ctypes.string_at(buffer, valid), self._names, self._layouts
            next_record, record = self._library.cuptiActivityGetNextRecord, ctypes.c_void_p(None)
            arguments = ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)
            while valid:
                status = next_record(*arguments)
                if status == MAX_LIMIT_REACHED:
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
    """Returns the requested kinds of records, by their names in the package's structures."""
    kinds = cupti.ActivityKind
    return {"kernel": kinds.CONCURRENT_KERNEL, "memcpy": kinds.MEMCPY, "memset": kinds.MEMSET}


def _layouts(cupti: Any) -> Mapping[int, Layout]:
    """Returns the layout of each kind of record. Later versions of a record only append fields."""
    layouts = {}
    for kind, number in _kinds(cupti).items():
        versions = [
            (int(found[1] or 0), getattr(cupti, name))
            for name in dir(cupti)
            if (found := re.fullmatch(rf"activity_{kind}(\d*)_dtype", name))
        ]
        if not versions:
            raise InstrumentMissing(f"cupti-python has no layout for a record of a {kind}: install another version")
        fields = max(versions, key=lambda version: version[0])[1].fields
        layouts[int(number)] = Layout.of({name: at for name, (_, at, *_) in fields.items()}, kind)
    return layouts


def loaded_library() -> Any:
    """Returns the CUPTI library that this process has loaded."""
    loaded = {
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if re.search(r"/libcupti\.so[.\d]*$", line)
    }
    if len(loaded) != 1:
        raise InstrumentMissing(f"this process must load exactly one CUPTI library, and has {sorted(loaded) or 'none'}")
    return ctypes.CDLL(loaded.pop())


def open_cupti(kind: str, settings: MeasureSettings) -> KernelRecords:
    """Opens the instrument on the GPU of this process. Raises InstrumentMissing."""
    recorder = CuptiRecorder(torch.cuda.synchronize)
    with recorder.recording() as records:
        for _ in range(_MARKS):
            torch.cuda._sleep(1)
        found = list(records())
    if len(found) != _MARKS or not all(MARK in record.name and 0 < record.duration_us < 1e3 for record in found):
        raise InstrumentMissing(f"CUPTI's records of {_MARKS} kernels that were launched are {found}")
    return KernelRecords(recorder, lambda: torch.cuda._sleep(1), torch.cuda.synchronize)
