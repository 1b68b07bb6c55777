"""What runs on a device: replays of database rows, the devices, and the instruments that time them.

Importing this package does not import torch: pytest collects replays without a device. The
modules that need torch (rows, check, runner, impl, expected, ...) are loaded where a device is.
"""
