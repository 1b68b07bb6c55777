"""Devices of other machines, through Ray."""
