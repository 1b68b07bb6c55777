"""Devices that replay rows: a file for each kind, which names or has all that the rest of the program asks of it."""
