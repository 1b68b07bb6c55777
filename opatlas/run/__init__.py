"""Replays one row on a device: makes the inputs, runs and times the kernel, and checks the result."""
