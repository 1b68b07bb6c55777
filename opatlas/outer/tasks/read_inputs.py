"""Reads shapes and dtypes of the inputs of tasks, in a process of its own.

Reads {"tasks": [...], "deadline_s": ...} from stdin, and prints a list with {"inputs": [[[shape, dtype], ...], ...]} or
{"error": reason} for each task. Each task runs in a fork, which is killed at its deadline. torch makes the inputs on
device "meta", where tensors have no values and take no memory; files that need values get them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch

from opatlas.outer.tasks.modules import StandIn, input_lists, load_task, stand_ins_for_missing_packages
from opatlas.outer.tasks.task import read_tasks
from opatlas.row.slots import DTYPE_NAMES, known_dtype
from opatlas.text import exception_line

#: Bytes read from a fork at once.
_CHUNK = 1 << 16
#: Names of profilers for the dtypes of torch and numpy.
_NAMES = {dtype.torch_name: name for name in DTYPE_NAMES if (dtype := known_dtype(name)) is not None}


def main() -> None:
    """Answers on the original stdout; whatever the tasks print goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    wanted = json.loads(sys.stdin.read())
    deadline_s = float(wanted["deadline_s"])
    # A fork must not inherit threads.
    torch.set_num_threads(1)
    # A task that loads a model from a hub must find the files on this machine: the hub would be asked for minutes.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Loads the parts of torch that device "meta" needs: each fork would load it again.
    torch.randint(0, 2, (2, 2), device="meta").bool().tril().T.contiguous()
    found = [_in_fork(task, deadline_s) for task in wanted["tasks"]]
    with os.fdopen(answers, "w", encoding="utf-8") as stream:
        json.dump(found, stream)


def _in_fork(wanted: Mapping[str, str], deadline_s: float) -> Mapping[str, Any]:
    """Returns the answer of a fork, or why there is none."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            answer = json.dumps(_answer(wanted)).encode()
            with os.fdopen(writing, "wb") as stream:
                stream.write(answer)
        finally:
            os._exit(0)
    os.close(writing)
    text, is_late = _read(reading, monotonic() + deadline_s)
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if is_late:
        return {"error": f"still running after {deadline_s:g} s"}
    try:
        answer = json.loads(text)
    except ValueError:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return {"error": f"its process ended{f' by signal {number}' if number else ''} without inputs"}
    return answer if isinstance(answer, dict) else {"error": "its process gave a wrong answer"}


def _read(descriptor: int, until: float) -> tuple[bytes, bool]:
    """Returns the bytes that a fork wrote, and whether the time was up before the end."""
    parts: list[bytes] = []
    while (left := until - monotonic()) > 0:
        if not select.select([descriptor], [], [], left)[0]:
            break
        part = os.read(descriptor, _CHUNK)
        if not part:
            return b"".join(parts), False
        parts.append(part)
    return b"".join(parts), True


def _answer(wanted: Mapping[str, str]) -> Mapping[str, Any]:
    """Returns the inputs of a task; torch's first without values, then with values."""
    reason = ""
    for device in ("meta", "cpu"):
        try:
            [task] = read_tasks(Path(wanted["path"]))
            if task.digest != wanted["digest"]:
                return {"error": "the file was changed meanwhile: run the session again"}
            with torch.device(device), _zeros_of_numpy(device), stand_ins_for_missing_packages(task):
                lists = input_lists(load_task(task), task)
                return {"inputs": [list(_described(each)) for each in lists]}
        except BaseException as error:
            reason = exception_line(error)
    return {"error": reason}


@contextmanager
def _zeros_of_numpy(device: str) -> Iterator[None]:
    """On device "meta" numpy's random arrays hold zeros, which take no time to make."""
    if device != "meta":
        yield
        return
    by_shape = dict.fromkeys(("rand", "randn"), lambda *shape: np.zeros(shape))
    by_size = dict.fromkeys(("random", "random_sample", "standard_normal"), lambda size=None: np.zeros(size or ()))
    between = dict.fromkeys(("uniform", "normal"), lambda low=0.0, high=1.0, size=None: np.zeros(size or ()))
    stand_ins: dict[str, Any] = {**by_shape, **by_size, **between}
    originals = {name: getattr(np.random, name) for name in stand_ins}
    try:
        vars(np.random).update(stand_ins)
        yield
    finally:
        vars(np.random).update(originals)


def _described(inputs: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yields shape and dtype of each tensor, also in nested lists. Raises TypeError for a stand-in."""
    for value in inputs:
        if isinstance(value, (torch.Tensor, np.ndarray)):
            dtype = str(value.dtype).removeprefix("torch.")
            yield ",".join(map(str, value.shape)), _NAMES.get(dtype, dtype.upper())
        elif isinstance(value, (list, tuple)):
            yield from _described(value)
        elif isinstance(value, StandIn) or (isinstance(value, type) and issubclass(value, StandIn)):
            raise TypeError("an input is made by a package that is not installed")


if __name__ == "__main__":
    main()
