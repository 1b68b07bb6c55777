"""A probe: its target, its verdict, and the process with a deadline that runs the probe.

The process runs this module as a program. A probe that hangs, or whose process is killed by a library, is a finding.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from opatlas.errors import OpAtlasError
from opatlas.files import TemporaryFolder
from opatlas.run.devices.device import device_kinds
from opatlas.run.process.fresh_python import import_environment, module_command
from opatlas.run.process.keeper import die_with_parent
from opatlas.run.process.messages import decode, encode
from opatlas.text import Word, exception_line

#: Deadline of a probe that prints a version or looks at files.
PRINTS_S = 60.0
#: The end of a process's output is kept, in bytes.
_OUTPUT_KEPT = 8000
_ALWAYS = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONFAULTHANDLER": "1"}


class State(Word):
    """How a probe ended; a failure of what the device does not need is a warning."""

    PASS = "pass"
    FAIL = "fail"
    WARN = "warn"
    SKIP = "skip"


@dataclass(frozen=True)
class Verdict:
    """What a probe found.

    Attributes:
        state: whether the examined part works.
        detail: the finding, in a line.
        remedy: what to do; "" if there is nothing to do.
        facts: details for the report.
    """

    state: State
    detail: str
    remedy: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def passed(detail: str, /, **facts: Any) -> Verdict:
    """Returns the verdict on something that exists and works."""
    return Verdict(State.PASS, detail, "", facts)


def failed(detail: str, remedy: str = "", /, **facts: Any) -> Verdict:
    """Returns the verdict on something that is missing or does not work."""
    return Verdict(State.FAIL, detail, remedy, facts)


def skipped(detail: str) -> Verdict:
    """Returns the verdict on something that is not needed on this machine."""
    return Verdict(State.SKIP, detail)


@dataclass(frozen=True)
class Target:
    """The device for which the machine is examined.

    Attributes:
        device: as in `pytest bench/ --device`; "" for the device at hand.
        kind: the kind of the device; "" before the kind is known.
        with_group: whether two ranks run a collective.
        files: a folder in which a probe leaves files for the report; None: no files.
    """

    device: str = ""
    kind: str = ""
    with_group: bool = False
    files: Path | None = None


@dataclass(frozen=True)
class Probe:
    """A stage of the doctor's examination.

    Attributes:
        function: examines the machine for a target; an exception is a failure.
        deadline_s: the time in seconds after which its process is killed.
        needed_by: the kinds of devices that need the examined part; () for no kind.
        of_ascend: runs only if the machine has signs of an NPU.
        requires: the probe that has to pass first; "" for none.
        as_device_process: its process gets the environment of the process that owns the device in a replay.
    """

    function: Callable[..., Verdict]
    deadline_s: float = PRINTS_S
    needed_by: tuple[str, ...] = tuple(device_kinds())
    of_ascend: bool = False
    requires: str = ""
    as_device_process: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__


@dataclass(frozen=True)
class ProbeResult:
    """A verdict, with the wall time in seconds and the end of the output of its process."""

    verdict: Verdict
    took_s: float = 0.0
    output: str = ""


def run_probe(probe: Probe, target: Target, environment: Mapping[str, str] | None = None) -> ProbeResult:
    """Runs a probe in a child process, with further variables. At its deadline process and children are killed."""
    from opatlas.run.process.child import describe_exit

    started = time.monotonic()
    with TemporaryFolder("doctor") as folder, tempfile.TemporaryFile() as output:
        question, answer = folder / "target", folder / "verdict"
        question.write_bytes(encode(target))
        process = subprocess.Popen(
            module_command(__name__, probe.function.__module__, probe.name, str(question), str(answer)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**import_environment(), **(environment or {}), **_ALWAYS},
            start_new_session=True,
        )
        ended = f"did not end within {probe.deadline_s:g} s"
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(probe.deadline_s)
                ended = f"ended: {describe_exit(process.returncode)}"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        size = os.fstat(output.fileno()).st_size
        printed = os.pread(output.fileno(), _OUTPUT_KEPT, max(size - _OUTPUT_KEPT, 0)).decode(errors="replace")
        try:
            verdict = decode(answer.read_bytes(), Verdict)
        except (OSError, ValueError):
            verdict = failed(f"the probe's process {ended}", "send us the report (--report), which has what it printed")
    return ProbeResult(verdict, time.monotonic() - started, printed)


def main(module: str, name: str, target: str, verdict_file: str) -> None:
    """Runs a probe on the target in a file, and writes its verdict into another one."""
    die_with_parent()
    try:
        verdict = getattr(import_module(module), name)(decode(Path(target).read_bytes(), Target))
    except OpAtlasError as error:
        # The message ends with the remedy.
        verdict = failed(str(error))
    except Exception as error:  # An error of a library is a finding of the probe.
        verdict = failed(exception_line(error), traceback=traceback.format_exc())
    Path(verdict_file).write_bytes(encode(verdict))


if __name__ == "__main__":
    # The probe imports this module by its name: one copy of its classes is enough.
    import_module("opatlas.outer.doctor.probe").main(*sys.argv[1:])
