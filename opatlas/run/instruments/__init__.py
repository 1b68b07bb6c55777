"""Instruments, which measure durations."""
