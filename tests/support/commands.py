"""Runs a command of `opatlas` in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opatlas.cli.main import main


def run(capsys: pytest.CaptureFixture[str], command: str, *arguments: object) -> tuple[int, str, str]:
    """Returns the exit status, the output and the errors of a command."""
    status = main([command, *map(str, arguments)])
    return status, *capsys.readouterr()


def as_json(capsys: pytest.CaptureFixture[str], command: str, *arguments: object) -> dict[str, Any]:
    """Returns the JSON output of a command that succeeds."""
    status, out, err = run(capsys, command, *arguments, "--json", "-")
    assert (status, err) == (0, "")
    content: dict[str, Any] = json.loads(out)
    return content
