"""The pytest plugins of OpAtlas: `pytest -p opatlas.plugins my_kernels/` replays rows with the functions found there.

Hooks and options are here, what they do is in the library. None of them imports torch.

PYTEST_DONT_REWRITE: the entry point `data_folders` imports this package before a conftest.py can name it, and pytest
warns of modules whose asserts it can no longer rewrite. There is no assert here.
"""

pytest_plugins = tuple(f"{__name__}.{name}" for name in ("options", "theory", "hooks", "collector"))
