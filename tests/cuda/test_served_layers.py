"""Layers as an engine serves them, on a GPU: recorded, ingested, replayed, and compared with the calls of a model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(*arguments: object) -> str:
    done = subprocess.run([sys.executable, "-m", *map(str, arguments)], cwd=ROOT, text=True, capture_output=True)
    print(done.stdout, done.stderr)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, gpu) -> tuple[Path, dict[str, object]]:
    """A database of the layers' traces, replayed, and what the ingest said."""
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("layers")
    (folder / "traces").mkdir()
    _run("tests.cuda.served_layers", folder / "traces")
    database = folder / "database"
    given = ["--profiling-path", folder / "traces", "--attention", "64x1@4096", "--database-path", database]
    said = _run("opatlas", "ingest", *given, "--json")
    _run("pytest", "bench/", "-q", "--database-path", database, "--device=cuda", "-p", "no:cacheprovider")
    return database, json.loads(said)


def test_at_least_95_percent_of_device_time_has_a_replay(recorded) -> None:
    _, said = recorded
    captures = said["captures"]
    left = sum(each["duration_us"] for each in captures["left_out_us"])
    assert captures["ingested_us"] >= 0.95 * (captures["ingested_us"] + left)


def test_captured_rows_are_those_of_the_model(recorded) -> None:
    from opatlas.data.database import Database
    from opatlas.theory.model_calls import model_calls
    from opatlas.theory.sources import resolve_model

    database = Database(recorded[0])
    rows = {kernel_type: set(database.read(kernel_type).signatures) for kernel_type in database.kernel_types()}
    model = resolve_model("Qwen/Qwen3-32B")
    wanted = [
        *model_calls(model, batch=64, context=4096, phase="decode"),
        *model_calls(model, batch=1, context=2048, phase="prefill"),
    ]
    # An engine's kernels of rope, and of the choice of the last tokens, are those that do their work on a GPU.
    calls = [call.instead or call for call in wanted]
    missing = {
        f"{call.part} {call.kernel_type}" for call in calls if call.signature() not in rows.get(call.kernel_type, ())
    }
    assert missing == set()
