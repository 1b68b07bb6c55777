"""What a probe found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path

Fact = str | int | float | bool | None | list[str] | dict[str, str]


class State(str, Enum):
    """How a probe ended."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Verdict:
    """The end of a probe.

    Attributes:
        detail: what was found, in a line.
        remedy: what to do about it; "" where there is nothing to do.
        facts: what was found, for the report.
    """

    state: State
    detail: str
    remedy: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)


def passed(detail: str, /, **facts: Fact) -> Verdict:
    """What was looked for is there."""
    return Verdict(State.PASS, detail, "", facts)


def failed(detail: str, remedy: str = "", /, **facts: Fact) -> Verdict:
    """It is not, or does not work; what to do about it."""
    return Verdict(State.FAIL, detail, remedy, facts)


def skipped(detail: str, remedy: str = "", /) -> Verdict:
    """Nothing here needs it."""
    return Verdict(State.SKIP, detail, remedy)


@dataclass(frozen=True)
class Target:
    """What the machine is looked at for.

    Attributes:
        device: as `pytest bench/ --device` has it; "" for the device at hand.
        kind: of that device; "" before it is known.
        database: a folder; None for the default of the device.
        backend: what is to carry messages between two ranks, as torch.distributed calls it; "" where nobody asks.
        environment: variables of the process that owns the device in a replay, besides those of this process.
        files: a folder in which a probe may leave files for the report; None: nobody wants any.
    """

    device: str = ""
    kind: str = ""
    database: Path | None = None
    backend: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Path | None = None

    def to_json(self) -> str:
        """Returns the target as text, for the process of a probe."""
        return json.dumps(asdict(self), default=str)

    @staticmethod
    def from_json(text: str) -> Target:
        """Returns the target that `to_json` has written."""
        values = json.loads(text)
        paths = {name: Path(values[name]) for name in ("database", "files") if values.get(name)}
        return Target(**{**values, **paths})
