"""Theory rows are added by `pytest shapes/`, from a checkout of OpAtlas.

`pytest shapes/ --help` tells its options, and docs/theory-rows.md what it adds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Tells what to run instead; gives the exit status: of help, or of wrong usage."""
    asked = bool({"-h", "--help"}.intersection(arguments))
    print((__doc__ or "").strip(), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
