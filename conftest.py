"""Registers the plugins, nothing else."""

pytest_plugins = (
    "opatlas.plugins.options",
    "opatlas.plugins.theory",
    "opatlas.plugins.hooks",
)
