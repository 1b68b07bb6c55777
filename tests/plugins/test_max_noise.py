"""--max-noise in sessions: the row fails, nothing is lost, and the next session measures it again."""

from __future__ import annotations

import json

import pytest
from sessions import Sessions, row

#: Less than any clock shows of any three samples.
IMPOSSIBLE = "--max-noise=0.000001%"
THREE = ("--repeat-count=3", "--cache=warm")


def test_a_noisy_row_fails_and_keeps_its_former_duration(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    assert sessions.run_in_process("--max-noise=1000%", measure=THREE).code == 0
    (manifest,) = (sessions.database / "runs").glob("*.json")
    assert json.loads(manifest.read_text())["options"]["max_noise"] == 10.0
    (before,) = sessions.read("Toy")
    noisy = sessions.run_in_process(IMPOSSIBLE, measure=THREE)
    assert noisy.code == pytest.ExitCode.TESTS_FAILED
    (after,) = sessions.read("Toy")
    assert after["Status"] == "noisy"
    assert after["Status Reason"].count("in 3 samples") == 3
    kept = ("Average Duration(us)", "MicroBench Samples", "Run ID")
    assert [after[name] for name in kept] == [before[name] for name in kept]


def test_a_noisy_row_is_run_again_and_is_no_known_failure(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    # Pruning leaves it, too.
    for option in ("--prune-empty-duration-rows", "--update-mode=missing-only"):
        noisy = sessions.run_in_process(IMPOSSIBLE, option, measure=THREE)
        assert noisy.outcomes() == {"failed": 1}
    assert sessions.run_in_process("--update-mode=missing-only", measure=THREE).outcomes() == {"passed": 1}
    assert sessions.statuses("Toy") == {1: "measured"}


def test_too_few_samples_to_tell_noise_are_refused(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    refused = sessions.run_in_process("--max-noise=5%", measure=("--repeat-count=2",))
    assert refused.code == pytest.ExitCode.USAGE_ERROR
    by_variable = sessions.run_in_process("--max-noise=5%", measure=(), MSMODELING_OP_REPLAY_REPEAT_COUNT="2")
    assert by_variable.code == pytest.ExitCode.USAGE_ERROR
    assert sessions.statuses("Toy") == {1: ""}
