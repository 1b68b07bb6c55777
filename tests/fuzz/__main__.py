"""Fuzzes the parsers of OpAtlas: mutated inputs for each target.

An input that finds something is saved below .fuzz/, with the command that runs it again.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .target import Target

ROOT = Path(__file__).parents[2]
# Captures for tests are made there.
sys.path.insert(0, str(ROOT / "tests" / "support"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="targets to fuzz (default: all that --list names)")
    parser.add_argument("--list", action="store_true", help="print the targets, with the rules for each")
    parser.add_argument("--seconds", type=float, default=60, metavar="S", help="for each target (default: %(default)g)")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the inputs (default: another each time)")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="run this one input of the target again")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    from .engine import FINDINGS, fuzz, work
    from .targets import TARGETS, target_named

    unknown = [name for name in arguments.targets if name not in TARGETS and ":" not in name]
    if unknown:
        parser.error(f"no target {', '.join(unknown)}: there are {', '.join(TARGETS)}")
    if arguments.repeat and len(arguments.targets) != 1:
        parser.error("--repeat takes one target")
    names = arguments.targets or list(TARGETS)
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    if arguments.list:
        for target in TARGETS.values():
            print(f"{target.name:21} {target.about}")
    elif arguments.repeat:
        return _repeat(target_named(names[0]), arguments.repeat)
    elif arguments.worker:
        work(target_named(names[0]), seed, arguments.seconds, arguments.worker)
    else:
        print(f"{len(names)} targets, {arguments.seconds:g} s each, --seed {seed}")
        found = []
        for name in names:
            started = time.monotonic()
            outcome = fuzz(name, seed, arguments.seconds)
            rate = f"{outcome.inputs:>9,} inputs {outcome.inputs / (time.monotonic() - started):>8,.0f}/s"
            print(f"{name:21} {rate} {len(outcome.findings):>3} found", flush=True)
            found += outcome.findings
        for finding in found:
            print(f"\n{finding}")
        if found:
            print(f"\n{len(found)} found; the inputs are in {FINDINGS}")
        return 1 if found else 0
    return 0


def _repeat(target: Target, path: Path) -> int:
    from .engine import check, limit_memory

    faulthandler.enable()
    with tempfile.TemporaryDirectory() as name:
        limit_memory()
        try:
            check(target, path.read_bytes(), Path(name))
        except Exception:
            traceback.print_exc()
            return 1
    print(f"{path}: everything holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
