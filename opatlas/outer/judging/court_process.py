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
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from opatlas.outer.judging.bench import Inputs, Purpose, ReferenceFailed, write_results
from opatlas.outer.judging.court import Court
from opatlas.outer.judging.court_control import ANSWER_TIMEOUT_S, OF_PYTEST, Found, Open, RowToJudge
from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass
from opatlas.outer.judging.memory import Leaf, SharedMemory
from opatlas.outer.judging.results import FlatResults
from opatlas.outer.judging.sentence import CourtVerdict
from opatlas.run.process.child import Channel, readable
from opatlas.run.process.keeper import die_with_parent, exit_without_cleanup
from opatlas.run.process.messages import ChannelBroken, ChildChannel, ProcessMessage
from opatlas.text import exception_line

_SEEDS = 1 << 30
#: Smaller inputs and results are compared by one thread: others would wait for a busy processor more than they compute.
_LARGE_BYTES = 16 << 20
_ADDRESS, _MEMORY = "address", "memory"
_SHARED = Path("/dev/shm")


class Hello(ProcessMessage, frozen=True):
    """The first message of a candidate's process: its device, and the variables that say which devices it sees."""

    device: str
    variables: dict[str, str]


class Welcome(ProcessMessage, frozen=True):
    """The answer to Hello.

    Attributes:
        weights_seed: the seed of the weights.
        memory_bytes, results_start: size of the memory, and where results begin.
        failure: why there is no reference; "" if there is one.
    """

    weights_seed: int
    memory_bytes: int = 0
    results_start: int = 0
    failure: str = ""


class Ask(ProcessMessage, frozen=True):
    """Asks for the inputs of a call; `purpose` is a `Purpose`."""

    purpose: str


class Given(ProcessMessage, frozen=True):
    """The inputs of a call, as `msgspec` encodes them; or why there are none."""

    inputs: bytes
    failure: str = ""


class CourtStep(ProcessMessage, frozen=True):
    """A step of a candidate: "start", "started", "weights", "end", "ended"."""

    name: str


class Returned(ProcessMessage, frozen=True):
    """What a call has returned, the inputs after it, and its duration in microseconds."""

    results: tuple[Leaf, ...]
    inputs: tuple[Leaf, ...] | None
    claimed_us: float | None


_OF_CANDIDATE = Hello | Ask | CourtStep | Returned
_TO_CANDIDATE = Welcome | Given | CourtStep


class RemoteCourt:
    """The way from the process of a candidate to the court."""

    def __init__(self, folder: str, device: torch.device) -> None:
        """Connects. Raises ReferenceFailed if there is no reference."""
        end = socket.socket(socket.AF_UNIX)
        end.connect(str(Path(folder, _ADDRESS)))
        self._channel = ChildChannel(end, _TO_CANDIDATE)
        variables = {name: os.environ[name] for name in os.environ if name.endswith("_VISIBLE_DEVICES")}
        welcome = self._asked(Hello(str(device), variables))
        if welcome.failure:
            raise ReferenceFailed(welcome.failure)
        self.weights_seed: int = welcome.weights_seed
        self._start = welcome.results_start
        self._memory = SharedMemory(welcome.memory_bytes, Path(folder, _MEMORY))

    def ask(self, purpose: Purpose) -> tuple[Inputs, SharedMemory]:

        given = self._asked(Ask(purpose.value))
        if given.failure:
            raise ReferenceFailed(given.failure)
        return msgspec.msgpack.decode(given.inputs, type=Inputs), self._memory

    def start(self) -> None:
        self._step("start")

    def returned(self, results: FlatResults, inputs: Sequence[Any] | None, claimed_us: float | None) -> None:
        found, after = write_results(self._memory, self._start, results, inputs)
        with _expect_court():
            self._channel.send(Returned(tuple(found), None if after is None else tuple(after), claimed_us))

    def share_weights(self) -> None:
        self._step("weights")

    def end(self) -> None:
        self._step("end")

    def _step(self, name: str) -> None:
        self._asked(CourtStep(name))

    def _asked(self, message: ProcessMessage) -> Any:
        """Returns the answer to a message. Raises CandidateRejected as `_expect_court` does."""
        with _expect_court():
            self._channel.send(message)
            return self._channel.receive()


@contextlib.contextmanager
def _expect_court() -> Iterator[None]:
    """Raises CandidateRejected if the court has ended, or got what is no message."""
    try:
        yield
    except (OSError, EOFError) as error:
        text = "the process that judges results has ended, or got what is no message"
        raise CandidateRejected(ErrorClass.CRASH, "no-verdict", text) from error


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
                candidate = Channel(listening.accept()[0], _OF_CANDIDATE)
                with contextlib.suppress(EOFError, OSError, ChannelBroken):
                    verdict = _hear(candidate, fd, folder, row, threads) or verdict
                candidate.close()
                torch.set_num_threads(threads)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    channel.send(Found(msgspec.msgpack.encode(verdict)))


def _hear(candidate: Channel, fd: int, folder: Path, row: RowToJudge, threads: int) -> CourtVerdict | None:
    """Answers a candidate's process until it asks for the verdict, which is returned; None if it does not."""

    seed = random.SystemRandom().randrange(_SEEDS)
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
            court = Court(referee, device)
            court.memory = SharedMemory(court.memory_bytes, folder / _MEMORY, is_new=True)
        except Exception as error:
            failure = str(error) if isinstance(error, ReferenceFailed) else exception_line(error)
            candidate.send(Welcome(seed, failure=failure))
            return CourtVerdict(failure=failure)
        candidate.send(Welcome(seed, court.memory_bytes, court.results_start))
        while True:
            match message := candidate.receive(None, [fd]):
                case Ask():
                    try:
                        given = Given(msgspec.msgpack.encode(court.ask(Purpose(message.purpose))))
                    except ReferenceFailed as error:
                        given = Given(b"", str(error))
                    candidate.send(given)
                case Returned():
                    court.returned(message.results, message.inputs, message.claimed_us)
                case CourtStep(name="start"):
                    court.start()
                    candidate.send(CourtStep("started"))
                case CourtStep(name="weights"):
                    court.share_weights()
                    candidate.send(CourtStep("shared"))
                case CourtStep(name="end"):
                    if court.memory_bytes > _LARGE_BYTES:
                        torch.set_num_threads(threads)
                    verdict = court.verdict()
                    candidate.send(CourtStep("ended"))
                    return verdict
                case _:
                    return None


if __name__ == "__main__":
    main(int(sys.argv[1]))
    exit_without_cleanup()
