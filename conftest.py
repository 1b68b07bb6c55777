"""Registers the plugins, nothing else."""

pytest_plugins = ("plugins.options", "plugins.workers", "plugins.theory", "plugins.wiring")
