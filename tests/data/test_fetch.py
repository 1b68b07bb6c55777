"""`opatlas fetch`: databases from a zip file of this machine or of a server."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from zipfile import ZipFile

import pytest
from abs_rows import cells

from opatlas.cli.main import main
from opatlas.row import location

PLACE = "H200/torch/torch2.11.0_cuda13.0"
ROWS = ",".join(cells(2)) + "\n" + ",".join(f'"{cell}"' for cell in cells(2).values()) + "\n"
RUN = {"run_id": "r", "started_at": 1.0, "version": 1}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(location, "ROOT", tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def pack(tmp_path: Path) -> Callable[..., Path]:
    def pack(files: dict[str, str]) -> Path:
        with ZipFile(tmp_path / "packed.zip", "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return tmp_path / "packed.zip"

    return pack


def installed(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_rows_and_runs_are_installed_from_any_depth_and_nothing_else(pack: Callable[..., Path], root: Path) -> None:
    inside = ("Add.csv", "SHIPPED.txt", "runs/r.json", "steps/Step.csv")
    outside = ("conftest.py", ".Add.csv", "journal/r.jsonl", "reports/r.csv", "../../../../../Add.csv")
    texts = {"Add.csv": ROWS, "runs/r.json": json.dumps(RUN)}
    files = {f"repository-main/database/{PLACE}/{name}": texts.get(name, "text") for name in (*inside, *outside)}
    assert main(["fetch", str(pack(files))]) == 0
    assert installed(root) == {f"{PLACE}/{name}" for name in inside}
    assert location.named_folder("H200") == root / PLACE


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"Add.csv": ROWS}, "versions"),
        ({f"../torch/{PLACE.rpartition('/')[2]}/Add.csv": ROWS}, "versions"),
        ({f"{PLACE}/Add.csv": "not,a,row\n1,2,3\n"}, "no database"),
        ({f"{PLACE}/Add.csv": ROWS, f"{PLACE}/runs/r.json": json.dumps({**RUN, "version": 2})}, "newer OpAtlas"),
    ],
)
def test_what_is_no_database_of_this_schema_leaves_nothing(
    files: dict[str, str], told: str, pack: Callable[..., Path], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", str(pack(files))]) == 1
    assert told in capsys.readouterr().err
    assert not root.exists() or installed(root) == set()


def test_the_digest_decides_and_a_database_that_is_there_stays(
    pack: Callable[..., Path], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = pack({f"{PLACE}/Add.csv": ROWS})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert main(["fetch", f"{path}@sha256:{digest[::-1]}"]) == 1
    assert digest in capsys.readouterr().err
    assert not root.exists()
    assert main(["fetch", f"{path}@{digest}"]) == 0
    assert main(["fetch", str(path)]) == 1
    assert "combine" in capsys.readouterr().err


def test_from_a_server(pack: Callable[..., Path], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = pack({f"{PLACE}/Add.csv": ROWS})
    handler = partial(SimpleHTTPRequestHandler, directory=str(path.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["fetch", f"{url}/{path.name}"]) == 0
        assert main(["fetch", f"{url}/none.zip"]) == 1
        server.shutdown()
    assert installed(root) == {f"{PLACE}/Add.csv"}
    assert "404" in capsys.readouterr().err
