"""The process of a court, and the way to it from the process of a candidate.

pytest ------ RowToJudge, Leave -----> court, which listens in a folder of its own
pytest <---- Open, CourtVerdict ---- court
candidate <- Inputs, bytes ---> court

Run as `python -m opatlas.outer.judging.court_process FD`, where FD is its end of a socket pair.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import random
import shutil
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from opatlas.outer.judging.court import SEEDS, Court
from opatlas.outer.judging.failures import ANSWER_TIMEOUT_S, OF_PYTEST, Open, RowToJudge
from opatlas.outer.judging.judgement import CandidateRejected, CourtVerdict, ErrorClass, ReferenceFailed
from opatlas.outer.judging.memory import Inputs, Leaf, Purpose, SharedMemory
from opatlas.run.process.child import Channel, readable
from opatlas.run.process.keeper import die_with_parent, exit_without_cleanup
from opatlas.run.process.messages import ChannelBroken, ChildChannel, ProcessMessage
from opatlas.text import exception_line

#: Smaller inputs and results are compared by one thread: others would wait for a busy processor more than they compute.
_LARGE_BYTES = 16 << 20
_ADDRESS, _MEMORY = "address", "memory"
_SHARED = Path("/dev/shm")


class Hello(ProcessMessage, frozen=True):
    """The first message of a candidate's process: its device, and the variables that say which devices it sees."""

    device: str
    variables: dict[str, str]


class Welcome(ProcessMessage, frozen=True):
    """The answer to Hello: the seed of the weights, the size of the memory, and where results begin."""

    weights_seed: int
    memory_bytes: int
    results_start: int


class NoReference(ProcessMessage, frozen=True):
    """The answer where there is no reference, or there are no inputs."""

    reason: str


class Ask(ProcessMessage, frozen=True):
    """Asks for the inputs of a call."""

    purpose: Purpose
    has_weights: bool


class NoMore(ProcessMessage, frozen=True):
    """No call follows; the answer comes when all results have been compared."""


class Returned(ProcessMessage, frozen=True):
    """What a call has returned, the inputs after it, and its duration in microseconds."""

    results: tuple[Leaf, ...]
    inputs: tuple[Leaf, ...] | None
    claimed_us: float | None


_OF_CANDIDATE = Hello | Ask | Returned | NoMore
_TO_CANDIDATE = Welcome | Inputs | NoMore | NoReference


class RemoteCourt:
    """The way from the process of a candidate to the court, with the methods of `Court` that it may call."""

    def __init__(self, folder: str, device: torch.device) -> None:
        """Connects. Raises ReferenceFailed if there is no reference."""
        end = socket.socket(socket.AF_UNIX)
        end.connect(str(Path(folder, _ADDRESS)))
        self._channel = ChildChannel(end, _TO_CANDIDATE)
        variables = {name: os.environ[name] for name in os.environ if name.endswith("_VISIBLE_DEVICES")}
        welcome = self._asked(Hello(str(device), variables))
        self.weights_seed: int = welcome.weights_seed
        self.results_start: int = welcome.results_start
        self.memory = SharedMemory(welcome.memory_bytes, Path(folder, _MEMORY))

    def ask(self, purpose: Purpose, has_weights: bool) -> Inputs:
        return self._asked(Ask(purpose, has_weights))

    def returned(self, results: Sequence[Leaf], inputs: Sequence[Leaf] | None, claimed_us: float | None) -> None:
        self._asked(Returned(tuple(results), None if inputs is None else tuple(inputs), claimed_us), is_answered=False)

    def end(self) -> None:
        self._asked(NoMore())

    def _asked(self, message: ProcessMessage, *, is_answered: bool = True) -> Any:
        """Returns the answer to a message. Raises ReferenceFailed, and CandidateRejected if the court has ended."""
        try:
            self._channel.send(message)
            answer = self._channel.receive() if is_answered else None
        except (OSError, EOFError) as error:
            text = "the process that judges results has ended, or got what is no message"
            raise CandidateRejected(ErrorClass.CRASH, "no-verdict", text) from error
        if isinstance(answer, NoReference):
            raise ReferenceFailed(answer.reason)
        return answer


def main(fd: int) -> None:
    """Judges one row after the other until the connection to pytest is closed."""
    die_with_parent()
    with ChildChannel(socket.socket(fileno=fd), OF_PYTEST) as channel:
        while True:
            try:
                row = channel.receive()
            except EOFError:
                return
            if isinstance(row, RowToJudge):
                sys.path[:] = dict.fromkeys((*sys.path, *row.sys_path))
                _judge(channel, fd, row)


def _judge(channel: ChildChannel, fd: int, row: RowToJudge) -> None:
    folder = Path(tempfile.mkdtemp(prefix="opatlas-court-", dir=_SHARED if os.access(_SHARED, os.W_OK) else None))
    threads = torch.get_num_threads()
    verdict = CourtVerdict()
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(folder / _ADDRESS))
            listening.listen(1)
            channel.send(Open(str(folder)))
            if listening.fileno() in readable([listening.fileno(), fd], None):
                connected = listening.accept()[0]
                pid, *_ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                candidate = Channel(connected, _OF_CANDIDATE)
                with contextlib.suppress(EOFError, OSError, ChannelBroken):
                    verdict = _hear(candidate, pid, fd, folder, row, threads) or verdict
                candidate.close()
                torch.set_num_threads(threads)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    channel.send(verdict)


def _hear(candidate: Channel, pid: int, fd: int, folder: Path, row: RowToJudge, threads: int) -> CourtVerdict | None:
    """Answers a candidate's process until it asks for the verdict, which is returned; None if it does not."""
    seed = random.SystemRandom().randrange(SEEDS)
    hello = candidate.receive(ANSWER_TIMEOUT_S, [fd])
    if not isinstance(hello, Hello):
        return None
    for name, value in hello.variables.items():
        if name.endswith("_VISIBLE_DEVICES"):
            os.environ[name] = value
    device = torch.device(hello.device)
    # Several threads would wait for each other within a bracket.
    torch.set_num_threads(1)
    with torch.no_grad():
        try:
            referee = pkgutil.resolve_name(row.referee)(row.run.whole, device, seed)
            court = Court(referee, seed, folder / _MEMORY, pid)
        except Exception as error:
            failure = str(error) if isinstance(error, ReferenceFailed) else exception_line(error)
            candidate.send(NoReference(failure))
            return CourtVerdict(failure=failure)
        candidate.send(Welcome(seed, len(court.memory), court.results_start))
        while True:
            match message := candidate.receive(None, [fd]):
                case Ask():
                    try:
                        candidate.send(court.ask(message.purpose, message.has_weights))
                    except ReferenceFailed as error:
                        candidate.send(NoReference(str(error)))
                case Returned():
                    court.returned(message.results, message.inputs, message.claimed_us)
                case NoMore():
                    if len(court.memory) > _LARGE_BYTES:
                        torch.set_num_threads(threads)
                    court.end()
                    candidate.send(message)
                    return court.found
                case _:
                    return None


if __name__ == "__main__":
    main(int(sys.argv[1]))
    exit_without_cleanup()
