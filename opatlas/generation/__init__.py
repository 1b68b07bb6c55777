"""Asks models for kernels, and for repairs of what was found wrong."""
