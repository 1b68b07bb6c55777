"""Judges candidate kernels, which a person or a model wrote: levels L0 to L4, error classes, guards against cheating."""
