"""FlagGems' Triton kernels, with the interface of flag_gems 5.0.2. The Ascend backend is not run by us.

Functions are called by their names in `flag_gems`, which has the variants of the device's backend. `flag_gems.enable()`
would replace torch's operators in the whole process, the check of results included.

The first call of a shape tunes the kernel. The tuned configurations and the generated code lie in a folder of the
system's temporary folder, one for each version of FlagGems, unless FLAGGEMS_CACHE_DIR names another: configurations of
an older version would choose the kernels otherwise.
"""

import os
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from opatlas.run.implementation import Support

DISTRIBUTIONS = ("flag_gems", "sqlalchemy")
DEVICES = ("cuda", "npu")

try:
    _FOLDER = f"flag_gems-{version('flag_gems')}"
except PackageNotFoundError:
    _FOLDER = "flag_gems"
# FlagGems reads it when it is imported, which the modules of this package do.
os.environ.setdefault("FLAGGEMS_CACHE_DIR", str(Path(tempfile.gettempdir()) / _FOLDER))

SUPPORT = Support("FlagGems")
expect, expect_dtype = SUPPORT.expect, SUPPORT.expect_dtype
