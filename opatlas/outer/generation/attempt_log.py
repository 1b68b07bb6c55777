"""The attempts of a run on disk: each is a line of `attempts.jsonl` as soon as it is judged.

Several processes of a session share the file. A line is written in one step under a lock, and synced to disk.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.files import safe_file
from opatlas.outer.experiment.attempts import ATTEMPTS, ModelAttempt, attempt_line, decode_attempt

_BLOCK_BYTES = 1 << 16


class AttemptLog:
    """The file of attempts in the folder of a run. Attempts of former sessions and of other processes are in it.

    Attributes:
        path: the file; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ATTEMPTS
        self._read_bytes = 0
        self._lines = 0
        self._cost_usd = 0.0
        self._attempts: dict[tuple[str, str, str], list[ModelAttempt]] = {}

    def attempts(self, task_set: str, task: str, model: str) -> list[ModelAttempt]:
        """Returns the attempts of a model at a task, in their order.

        Raises:
            OpAtlasError: the file cannot be read, or a line of it is no attempt.
        """
        self._read()
        return list(self._attempts.get((task_set, task, model), ()))

    def tasks_of(self, model: str) -> list[list[ModelAttempt]]:
        """Returns the attempts of a model at each task. Raises OpAtlasError as `attempts` does."""
        self._read()
        return [list(attempts) for (_, _, name), attempts in self._attempts.items() if name == model]

    def cost_usd(self) -> float:
        """Returns what all attempts of the run cost. Raises OpAtlasError as `attempts` does."""
        self._read()
        return self._cost_usd

    def append(self, attempt: ModelAttempt) -> None:
        """Adds a line, and returns once it is on the disk. Raises OpAtlasError if it cannot be written."""
        line = attempt_line(attempt).encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked() as file:
                size = os.fstat(file).st_size
                whole = _end_of_lines(file, size)
                if whole < size:
                    # A killed process left a part of a line, whose attempt is made again.
                    os.ftruncate(file, whole)
                try:
                    rest = memoryview(line)
                    while rest:
                        rest = rest[os.write(file, rest) :]
                except OSError:
                    os.ftruncate(file, whole)
                    raise
                os.fsync(file)
        except OSError as error:
            raise OpAtlasError(
                f"{self.path} was not written ({error.strerror}): make room, or name another folder"
            ) from None

    def _read(self) -> None:
        """Reads the lines that were added since the last call. A line without an end is left for later."""
        try:
            with open(safe_file(self.path), "rb") as file:
                file.seek(self._read_bytes)
                text = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise OpAtlasError(f"{self.path}: cannot be read ({error.strerror}): check its rights") from None
        *lines, _ = text.split(b"\n")
        for line in lines:
            place = f"{self.path}:{self._lines + 1}"
            if line.strip():
                attempt = decode_attempt(line, place)
                self._attempts.setdefault((attempt.task_set, attempt.task, attempt.model), []).append(attempt)
                self._cost_usd += attempt.cost_usd
            self._lines += 1
            self._read_bytes += len(line) + 1

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(safe_file(self.path), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def _end_of_lines(file: int, size: int) -> int:
    """Returns the number of bytes up to the end of the last whole line."""
    end = size
    while end > 0:
        start = max(end - _BLOCK_BYTES, 0)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
