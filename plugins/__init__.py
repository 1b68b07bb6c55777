"""The pytest plugins of OpAtlas: `pytest -p opatlas.plugins my_kernels/` replays rows with the functions found there.

Hooks and options are here, what they do is in the library. None of them imports torch.
"""

pytest_plugins = tuple(f"{__name__}.{name}" for name in ("options", "xdist", "theory", "hooks", "fixtures"))
