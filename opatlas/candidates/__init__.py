"""Judges candidate kernels, which a person or a model wrote: levels, error classes, guards against cheating."""
