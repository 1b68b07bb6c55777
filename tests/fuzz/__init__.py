"""Fuzzing of everything that OpAtlas reads: `python -m tests.fuzz --help`."""
