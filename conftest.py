"""Registers the plugins, nothing else."""

pytest_plugins = ("plugins.options", "plugins.theory", "plugins.workers", "plugins.wiring")
