"""Derives the arguments of a call, and their tensors, from a row."""
