"""The devices that rows are replayed on: a kind a file, behind the Protocol in device.py."""
