"""docs/ci/kernels.sh as a project's CI runs it: a pull request in one clone, main and its history in another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from doc_commands import ROOT

SCRIPT = ROOT / "docs" / "ci" / "kernels.sh"
ROWS = """\
Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats
"64,64;64,64",FLOAT;FLOAT,ND;ND,"64,64",FLOAT,ND
"""
#: The slow kernel takes milliseconds in place of microseconds, on a loaded machine too.
FAST, SLOW = 1, 3000
KERNEL = """\
import torch


def kernel(x, y, alpha=1):
    for _ in range({calls}):
        result = torch.add(x, y, alpha=alpha)
    return result
"""
#: In place of GitHub's command: keeps one comment, and the methods of the requests.
GH = """\
#!/usr/bin/env python3
import pathlib, sys
kept, words = pathlib.Path(sys.argv[0]).parent, sys.argv[1:]
assert words[0] == "api"
if "--jq" in words:
    print("7" if (kept / "comment").exists() else "")
else:
    with (kept / "requests").open("a") as requests:
        requests.write(" ".join(words[1:4]) + "\\n")
    (body,) = (word.removeprefix("body=@") for word in words if word.startswith("body=@"))
    (kept / "comment").write_text(pathlib.Path(body).read_text())
"""


@dataclass
class Clone:
    """A clone of the project, and the commands of its CI."""

    path: Path
    bin: Path

    def git(self, *words: str, days_ago: int = 0) -> str:
        date = {"GIT_COMMITTER_DATE": f"@{int(time.time()) - days_ago * 86400}"} if days_ago else {}
        named = ["-c", "user.name=somebody", "-c", "user.email=somebody@localhost"]
        command = ["git", "-C", str(self.path), *named, *words]
        done = subprocess.run(command, env={**os.environ, **date}, capture_output=True, text=True, check=True)
        return done.stdout

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(exist_ok=True)
        (self.path / name).write_text(text)

    def run(self, *words: str) -> int:
        """Returns the exit status of the script."""
        given = {
            "PATH": f"{self.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "MEASURE": "opatlas bench --cache=warm -p no:cacheprovider",
            "SLOWER": "300%",
            "GITHUB_STEP_SUMMARY": str(self.bin / "summary"),
            "GITHUB_REPOSITORY": "somebody/project",
        }
        return subprocess.run(
            [self.path / "ci/kernels.sh", *words], env={**os.environ, **given}, check=False
        ).returncode

    def report(self) -> str:
        return (self.path / "opatlas-ci/report.md").read_text()


@pytest.mark.slow
def test_a_slow_kernel_is_found_in_a_pull_request_and_in_a_week_of_main(tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "gh").write_text(GH)
    (bin_folder / "gh").chmod(0o755)
    subprocess.run(["git", "init", "--quiet", "--bare", "-b", "main", str(tmp_path / "origin")], check=True)
    main, pull = (Clone(tmp_path / name, bin_folder) for name in ("main", "pull"))
    clone = ["git", "clone", "--quiet", str(tmp_path / "origin")]
    subprocess.run([*clone, str(main.path)], check=True)
    main.git("checkout", "--quiet", "-B", "main")
    main.write("rows/Add.csv", ROWS)
    main.write("kernels/Add.py", KERNEL.format(calls=FAST))
    main.write(".gitignore", "opatlas-ci/\n")
    (main.path / "ci").mkdir()
    shutil.copy(SCRIPT, main.path / "ci")
    main.git("add", "--all")
    main.git("commit", "--quiet", "-m", "A fast kernel", days_ago=8)
    main.git("push", "--quiet", "origin", "main")
    assert main.run("record") == 0

    subprocess.run([*clone, str(pull.path)], check=True)
    pull.git("checkout", "--quiet", "-b", "change")
    assert pull.run("compare", "origin/main") == 0
    assert "SLOW" not in pull.report()
    pull.write("kernels/Add.py", KERNEL.format(calls=SLOW))
    pull.git("commit", "--quiet", "-am", "A slow kernel")
    assert pull.run("compare", "origin/main") == 1
    assert "| SLOW |" in pull.report()
    assert (pull.path / "opatlas-ci/advice/prompt.md").exists()
    assert pull.report() in (bin_folder / "summary").read_text()
    for _ in range(2):
        assert pull.run("comment", "3") == 0
    asked = [line.split()[1:] for line in (bin_folder / "requests").read_text().splitlines()]
    issues = "repos/somebody/project/issues"
    assert asked == [["POST", f"{issues}/3/comments"], ["PATCH", f"{issues}/comments/7"]]
    assert pull.report() in (bin_folder / "comment").read_text()
    assert pull.git("status", "--porcelain") == ""

    pull.git("push", "--quiet", "origin", "change:main")
    main.git("pull", "--quiet", "origin", "main")
    assert main.run("weekly") == 1
    assert "| SLOW |" in main.report()
    kept = main.git("ls-tree", "-r", "--name-only", "origin/opatlas-history").split()
    assert "kernels/Add.csv" in kept
    assert sum(name.endswith(".jsonl.gz") for name in kept) == 2


def test_the_workflow_runs_the_script() -> None:
    (job,) = yaml.safe_load((SCRIPT.parent / "kernels.yml").read_text())["jobs"].values()
    called = [words[1] for step in job["steps"] if (words := step.get("run", "").split())[:1] == ["ci/kernels.sh"]]
    assert called == ["compare", "record", "weekly", "comment"]
    for words in (["nothing"], []):
        assert subprocess.run([str(SCRIPT), *words], check=False, capture_output=True).returncode == 2
