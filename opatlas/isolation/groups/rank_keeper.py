"""A keeper (opatlas/isolation/keeper.py) of a rank, which ends with 0 once pytest has ended the group.

Run as `python -m opatlas.isolation.groups.rank_keeper FOLDER PARENT FD COMMAND...` by torchrun's launcher, which
ends all ranks as
soon as one of them ends with an error. HCCL's ranks may die of a segmentation fault while they shut down, when other
ranks, or the profilers that they run under, still have to write what they recorded.
"""

from __future__ import annotations

import sys
from pathlib import Path

from opatlas.isolation import keeper

_OVER = "over"


def mark_group_ended(folder: Path) -> None:
    """From now on no rank's exit code counts. Raises OSError.

    Args:
        folder: what the launcher was told to write to (`LaunchRequest.folder`).
    """
    (folder / _OVER).touch()


def main(folder: Path, parent: int, fd: int, command: list[str]) -> None:
    """Keeps `command` until it ends."""
    keeper.main(parent, fd, command, forgives=(folder / _OVER).exists)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
