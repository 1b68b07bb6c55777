"""Records the sequence lengths of attention calls in a serving process, for `opatlas ingest --attention-records`.

A profiler's capture has the shapes of a call and not its lengths. While a recorder runs, each distinct call of
torch_npu.npu_fused_infer_attention_score (and _v2, and the `.out` form that graphs use), and on GPUs of
flash_attn_varlen_func and flash_attn_with_kvcache (of vLLM, SGLang and FlashAttention), adds a line of JSON to a file:

    with record_attention("calls.jsonl"):
        serve()

or, without a change of code, in every process of vLLM, which loads plugins of installed packages:

    OPATLAS_RECORD_ATTENTION=calls.jsonl vllm serve ...

Without the variable nothing is installed. Recording waits for no device: on an NPU lengths are lists on the host, on a
GPU they are copied while it goes on. This module imports neither torch nor torch_npu. An error is logged once, ends
the recording, and never reaches the caller.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from numbers import Integral
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

import msgspec

ENVIRONMENT = "OPATLAS_RECORD_ATTENTION"
_TORCH_NPU = "torch_npu"
#: Where serving engines for GPUs define attention to sequences of several lengths, and its functions.
_FLASH_MODULES = (
    "vllm.vllm_flash_attn.flash_attn_interface",
    "flash_attn.flash_attn_interface",
    "sgl_kernel.flash_attn",
)
_FLASH_FUNCTIONS = ("flash_attn_varlen_func", "flash_attn_with_kvcache")
#: The mask by which rows say that attention is causal.
_CAUSAL_MASK = (2048, 2048)
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
        self._hooks: list[_Hook | _FunctionHook] = []
        # Calls whose lengths are on their way from a device, the earliest first.
        self._awaited: deque[_FlashCall] = deque()
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
        """Records calls from now on; those of modules that are not imported yet from their import on."""
        names = (_TORCH_NPU, *_FLASH_MODULES)
        self._finder = _AfterImport({name for name in names if name not in sys.modules}, self._hook)
        sys.meta_path.insert(0, self._finder)
        for name in names:
            if name in sys.modules:
                self._hook(name, sys.modules[name])

    def stop(self) -> None:
        """Ends the recording. Later calls are not recorded; those whose lengths are on their way are."""
        self._write_awaited(to_the_end=True)
        self.recording = False
        if self._finder is not None:
            self._finder.remove()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        with self._lock:
            self._close()

    def _hook(self, name: str, module: ModuleType) -> None:
        try:
            functions = _OPERATORS if name == _TORCH_NPU else _FLASH_FUNCTIONS
            hooks = [hook for function in functions for hook in self._hooks_of(module, function)]
            if not hooks:
                raise AttributeError(f"this {name} has no {' and no '.join(functions)}")
            self._hooks += hooks
            with self._lock:
                if self._file < 0:
                    self._open()
            self.recording = True
        except Exception as error:
            self._stop_after_error(error)

    def _hooks_of(self, module: ModuleType, name: str) -> Iterable[_Hook | _FunctionHook]:
        found = getattr(module, name, None)
        if found is None:
            return
        if name in _OPERATORS:
            tell = partial(self._record, partial(_record, _OPERATORS[name]))
            yield from (_Hook(form, tell) for form in (found, *(getattr(found, form) for form in found.overloads())))
        else:
            yield _FunctionHook(module, name, partial(self._record, partial(self._await, inspect.signature(found))))

    def _record(self, describe: Callable[..., bytes], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Writes the line of a call, which is empty if there is nothing to write yet."""
        if not self.recording:
            return
        try:
            self._write_new(describe(arguments, keywords))
            self._write_awaited()
        except Exception as error:
            self._stop_after_error(error)

    def _await(self, signature: inspect.Signature, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bytes:
        call = _FlashCall(signature.bind(*arguments, **keywords).arguments)
        with self._lock:
            # All layers of a step have the same lengths.
            if call.counts and not (self._awaited and self._awaited[-1].key == call.key):
                call.fetch()
                self._awaited.append(call)
        return b""

    def _write_awaited(self, *, to_the_end: bool = False) -> None:
        """Writes the calls whose lengths have come. The last one stays, to compare it with the next."""
        while len(self._awaited) > (0 if to_the_end else 1) and (to_the_end or self._awaited[0].has_come()):
            self._write_new(self._awaited.popleft().line())

    def _write_new(self, line: bytes) -> None:
        key = hash(line)
        if not line or key in self._seen:
            return
        with self._lock:
            self._seen[key] = None
            if len(self._seen) > _REMEMBERED:
                del self._seen[next(iter(self._seen))]
            self._write(line)

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

    def __init__(self, operator: Any, tell: Callable[..., None]) -> None:
        self._operator, self._tell = operator, tell
        self._removed = False
        self._original = operator._op
        operator._op = self

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        result = self._original(*arguments, **keywords)
        self._tell(arguments, keywords)
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


class _FunctionHook:
    """Replaces a function of a module. Modules that import it later get the hook."""

    def __init__(self, module: ModuleType, name: str, tell: Callable[..., None]) -> None:
        self._module, self._name, self._original = module, name, getattr(module, name)

        @wraps(self._original)
        def told(*arguments: Any, **keywords: Any) -> Any:
            tell(arguments, keywords)
            return self._original(*arguments, **keywords)

        self._hook = told
        setattr(module, name, told)

    def remove(self) -> None:
        """Restores the function, unless another hook came later; this one then only calls it."""
        if getattr(self._module, self._name, None) is self._hook:
            setattr(self._module, self._name, self._original)


class _FlashCall:
    """A call of FlashAttention, whose lengths are tensors on a device.

    Attributes:
        counts: the tensors of lengths: the ends of the queries and of the keys, or the numbers of keys; none for a
            call that is traced or captured.
        key: equal for calls with the same shapes and the same tensors of lengths, if nobody wrote to these in between.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        def first(*names: str) -> Any:
            return next((named[name] for name in names if named.get(name) is not None), None)

        query, key, value = first("q"), first("k_cache", "k"), first("v_cache", "v")
        self._shapes = tuple(_shape(each) or () for each in (query, key, value))
        self._table = _shape(first("block_table", "page_table"))
        self._causal, before = bool(named.get("causal")), int((named.get("window_size") or [-1])[0])
        is_window = self._causal and before >= 0
        self._mask = {"sparse_mode": 4, "pre_tokens": before} if is_window else {"sparse_mode": 3 * self._causal}
        found = {"queries": named.get("cu_seqlens_q"), "keys": first("seqused_k", "cache_seqlens", "cu_seqlens_k")}
        capturing = getattr(query, "is_cuda", False) and sys.modules["torch"].cuda.is_current_stream_capturing()
        skipped = capturing or type(query).__name__ in _TRACED or not hasattr(found["keys"], "tolist")
        self.counts: dict[str, Any] = {} if skipped else {name: own for name, own in found.items() if own is not None}
        self._ends_of_keys = first("seqused_k", "cache_seqlens") is None
        # Inference mode counts no writes.
        of_counts = [(id(own), object() if own.is_inference() else own._version) for own in self.counts.values()]
        self.key = (self._shapes, self._table, self._mask, of_counts)

    def fetch(self) -> None:
        """Begins to copy the lengths to the host."""
        on_gpu, torch = any(each.is_cuda for each in self.counts.values()), sys.modules["torch"]
        self._event = torch.cuda.Event() if on_gpu else None
        self._host = {
            name: torch.empty(each.shape, dtype=each.dtype, pin_memory=on_gpu).copy_(each, non_blocking=True)
            for name, each in self.counts.items()
        }
        if self._event is not None:
            self._event.record()

    def has_come(self) -> bool:
        return self._event is None or self._event.query()

    def line(self) -> bytes:
        """Returns the line of the record, in the shapes of the rows of this call; waits for the lengths."""
        if self._event is not None:
            self._event.synchronize()
        (*tokens, heads, width), key, value = self._shapes
        keys = self._host["keys"].tolist()[self._ends_of_keys :]
        many = tokens[0] * (tokens[1] if len(tokens) > 1 else 1)
        ends = self._host["queries"].tolist()[1:] if "queries" in self._host else None
        ends = ends or [many // len(keys) * (i + 1) for i in range(len(keys))]
        size, kv_heads = (key[1], key[2]) if self._table else (0, key[1])
        if self._table:
            # As a row of a trace has the cache: as many blocks as the table can name.
            blocks = min(key[0], self._table[0] * self._table[1])
            key, value = ((blocks, size, kv_heads * each[-1]) for each in (key, value))
        record = {
            "query_shape": (many, heads, width),
            "key_shape": key,
            "value_shape": value,
            "atten_mask_shape": _CAUSAL_MASK if self._causal else None,
            "block_table_shape": self._table,
            "actual_seq_lengths": ends,
            "actual_seq_lengths_kv": keys,
            "block_table_valid_blocks": [-(-length // size) for length in keys] if size else None,
            "num_heads": heads,
            "num_key_value_heads": kv_heads,
            **self._mask,
            "input_layout": "TND",
            "block_size": size or None,
        }
        return msgspec.json.encode(record) + b"\n"


class _AfterImport(MetaPathFinder):
    """Calls a function with each of some modules after its import, by its name."""

    def __init__(self, names: set[str], then: Callable[[str, ModuleType], None]) -> None:
        self._names, self._then = names, then

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name not in self._names:
            return None
        self._names.discard(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute, then = spec.loader.exec_module, self._then

            def exec_module(module: ModuleType) -> None:
                execute(module)
                then(name, module)

            # Of this loader alone, not of its class.
            vars(spec.loader)["exec_module"] = exec_module
        return spec

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _record(names: _Names, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bytes:
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
        **({"pre_tokens": keywords.get("pre_tokens")} if keywords.get("sparse_mode") == 4 else {}),
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
