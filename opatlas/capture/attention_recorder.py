"""Records the sequence lengths of attention calls in a serving process, for `opatlas ingest --attention-records`.

A profiler's capture has the shapes of a call and not its lengths. While a recorder runs, each distinct call of
torch_npu.npu_fused_infer_attention_score (and _v2, and the `.out` form that graphs use) adds a line of JSON to a file:

    with record_attention("calls.jsonl"):
        serve()

or, without a change of code, in every process of vLLM, which loads plugins of installed packages:

    OPATLAS_RECORD_ATTENTION=calls.jsonl vllm serve ...

Without the variable nothing is installed. Recording reads nothing from the device: lengths are lists on the host, and
tensors only give their shapes. This module imports neither torch nor torch_npu. An error is logged once, ends the
recording, and never reaches the caller.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from numbers import Integral
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

import msgspec

ENVIRONMENT = "OPATLAS_RECORD_ATTENTION"
_TORCH_NPU = "torch_npu"
#: Calls remembered, so that the equal calls of a model's layers become one record.
_REMEMBERED = 4096
#: A decoding batch of 64 takes 1 kB for each step: 30 steps/s fill this in 9 hours.
_MOST_BYTES = 1 << 30
#: Tensors that a compiler passes through an operator to learn shapes; nothing is computed.
_TRACED = frozenset({"FakeTensor", "FunctionalTensor"})

_log = logging.getLogger("opatlas")


class _Names(NamedTuple):
    """The names of arguments that differ between versions of the operator."""

    query_lengths: str
    kv_lengths: str
    heads: str


_OPERATORS = {
    "npu_fused_infer_attention_score": _Names("actual_seq_lengths", "actual_seq_lengths_kv", "num_heads"),
    "npu_fused_infer_attention_score_v2": _Names("actual_seq_qlen", "actual_seq_kvlen", "num_query_heads"),
}


def start_from_environment() -> None:
    """Records until the process ends, if OPATLAS_RECORD_ATTENTION names a file.

    The entry point of vLLM's plugins. Other serving processes may call it, once or several times.
    """
    path = os.environ.get(ENVIRONMENT, "").strip()
    if path:
        _process_recorder(path)


@cache
def _process_recorder(path: str) -> record_attention:
    recorder = record_attention(path)
    recorder.start()
    return recorder


class record_attention:  # noqa: N801  (used as a function, like contextlib's)
    """Records attention calls inside a `with` block.

    `calls.jsonl` stands for one file for each process, `calls.{pid}.jsonl`, which exists as soon as calls are recorded.
    Each line is written at once, without a buffer, so that a killed process loses no line. A file grows to 1 GiB at
    most.

    Attributes:
        recording: whether calls are being recorded.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path` stands for the files of all processes; see above."""
        self.recording = False
        self._path = Path(path)
        self._file = -1
        self._pid = 0
        self._written = 0
        self._told = False
        self._seen: dict[int, None] = {}
        self._lock = threading.Lock()
        self._hooks: list[_Hook] = []
        self._finder: _AfterImport | None = None
        # A lock that another thread held at a fork would stay locked in the child.
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _with_fresh_lock(this()))

    def __enter__(self) -> record_attention:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Records calls from now on; if torch_npu is not imported yet, from its import on."""
        module = sys.modules.get(_TORCH_NPU)
        if module is not None:
            self._hook(module)
            return
        self._finder = _AfterImport(self._hook)
        sys.meta_path.insert(0, self._finder)

    def stop(self) -> None:
        """Ends the recording. Later calls are not recorded."""
        self.recording = False
        if self._finder is not None:
            self._finder.remove()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        with self._lock:
            self._close()

    def _hook(self, torch_npu: ModuleType) -> None:
        try:
            for name, names in _OPERATORS.items():
                packet = getattr(torch_npu, name, None)
                if packet is not None:
                    forms = [getattr(packet, form) for form in packet.overloads()]
                    self._hooks += [_Hook(form, names, self._record) for form in (packet, *forms)]
            if not self._hooks:
                raise AttributeError(f"this torch_npu has no {' and no '.join(_OPERATORS)}")
            with self._lock:
                self._open()
            self.recording = True
        except Exception as error:
            self._stop_after_error(error)

    def _record(self, names: _Names, arguments: Sequence[Any], keywords: dict[str, Any]) -> None:
        if not self.recording:
            return
        try:
            line = _record(names, arguments, keywords)
            key = hash(line)
            if not line or key in self._seen:
                return
            with self._lock:
                self._seen[key] = None
                if len(self._seen) > _REMEMBERED:
                    del self._seen[next(iter(self._seen))]
                self._write(line)
        except Exception as error:
            self._stop_after_error(error)

    def _write(self, line: bytes) -> None:
        if self._pid != os.getpid():
            self._open()
        if self._written + len(line) > _MOST_BYTES:
            raise OSError(f"{self._name()} has {self._written >> 20} MiB, the largest size of a file")
        written = os.write(self._file, line)
        self._written += written
        if written < len(line):
            raise OSError(f"{self._name()}: the disk is full")

    def _open(self) -> None:
        """Opens the file of this process. A file that a fork inherited belongs to the parent."""
        self._close()
        self._pid = os.getpid()
        self._file = os.open(self._name(), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._written = os.fstat(self._file).st_size

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _name(self) -> Path:
        return self._path.with_name(f"{self._path.stem}.{os.getpid()}{self._path.suffix or '.jsonl'}")

    def _stop_after_error(self, error: Exception) -> None:
        self.recording = False
        for hook in self._hooks:
            hook.remove()
        # Several threads may call this method at once.
        with self._lock:
            told, self._told = self._told, True
        if not told:
            _log.warning("attention calls are not recorded any more (%s: %s)", type(error).__name__, error)


def _with_fresh_lock(recorder: record_attention | None) -> None:
    if recorder is not None:
        recorder._lock = threading.Lock()


class _Hook:
    """Replaces the C function of an operator, or of one of its overloads.

    The operator object stays the same, because others have imported, compared or compiled it. Its hash is the hash of
    the C function, so this class keeps that hash.
    """

    def __init__(self, operator: Any, names: _Names, record: Callable[..., None]) -> None:
        self._operator, self._names, self._tell = operator, names, record
        self._removed = False
        self._original = operator._op
        operator._op = self

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        result = self._original(*arguments, **keywords)
        self._tell(self._names, arguments, keywords)
        return result

    def __hash__(self) -> int:
        return hash(self._original)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self._original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def remove(self) -> None:
        """Restores the C function, at once or as soon as all later hooks are removed."""
        self._removed = True
        while isinstance(top := self._operator._op, _Hook) and top._removed:
            self._operator._op = top._original


class _AfterImport(MetaPathFinder):
    """Calls a function after torch_npu has been imported."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != _TORCH_NPU:
            return None
        self.remove()
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute, then = spec.loader.exec_module, self._then

            def exec_module(module: ModuleType) -> None:
                execute(module)
                then(module)

            # Of this loader alone, not of its class.
            vars(spec.loader)["exec_module"] = exec_module
        return spec

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _record(names: _Names, arguments: Sequence[Any], keywords: dict[str, Any]) -> bytes:
    """Returns the line of a call; "" for a call that a compiler traces."""
    query, key, value = (
        arguments[at] if at < len(arguments) else keywords[name] for at, name in enumerate(("query", "key", "value"))
    )
    if type(query).__name__ in _TRACED:
        return b""
    kv_lengths, block_size = _lengths(keywords.get(names.kv_lengths)), keywords.get("block_size", 0)
    blocks = None
    if keywords.get("block_table") is not None and kv_lengths is not None and block_size:
        # The table is on the device, and its lines have unused entries. The keys of a sequence fill its blocks one
        # after the other, so the lengths give the blocks in use.
        blocks = [-(-length // block_size) for length in kv_lengths]
    record = {
        "query_shape": _shape(query),
        "key_shape": _shape(key),
        "value_shape": _shape(value),
        "atten_mask_shape": _shape(keywords.get("atten_mask")),
        "block_table_shape": _shape(keywords.get("block_table")),
        "actual_seq_lengths": _lengths(keywords.get(names.query_lengths)),
        "actual_seq_lengths_kv": kv_lengths,
        "block_table_valid_blocks": blocks,
        # The defaults of the operator.
        "num_heads": keywords.get(names.heads, 1),
        "num_key_value_heads": keywords.get("num_key_value_heads", 0),
        "sparse_mode": keywords.get("sparse_mode", 0),
        "input_layout": keywords.get("input_layout", "BSH"),
        "block_size": block_size,
    }
    return msgspec.json.encode(record) + b"\n"


def _shape(tensor: Any) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(map(int, tensor.shape))


def _lengths(lengths: Any) -> list[int] | None:
    """Returns a list of lengths on the host; None for lengths that would have to be fetched from a device."""
    device = getattr(lengths, "device", "cpu")
    if lengths is None or getattr(device, "type", device) != "cpu":
        return None
    numbers = lengths.tolist() if hasattr(lengths, "tolist") else lengths
    return [int(number) for number in numbers] if all(isinstance(number, Integral) for number in numbers) else None
