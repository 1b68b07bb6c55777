"""The keeper (opatlas/run/process/keeper.py) of a rank. It ends with 0 after pytest has ended the group.

torchrun's launcher runs `opatlas.run.groups.rank_keeper FOLDER PARENT FD COMMAND...`, and ends all ranks as soon
as one of them ends with an error. A rank of HCCL may die of a segmentation fault while it shuts down, when other ranks
or their profilers still write their records.
"""

from __future__ import annotations

import sys
from pathlib import Path

from opatlas.run.process import keeper

_GROUP_ENDED = "over"


def mark_group_ended(folder: Path) -> None:
    """Makes all later exit codes of ranks count as 0. Raises OSError.

    Args:
        folder: the folder of the launcher (`LaunchRequest.folder`).
    """
    (folder / _GROUP_ENDED).touch()


def main(folder: Path, parent: int, fd: int, command: list[str]) -> None:
    """Runs `command` until it ends."""
    keeper.main(parent, fd, command, ignores_exit_code=(folder / _GROUP_ENDED).exists)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
