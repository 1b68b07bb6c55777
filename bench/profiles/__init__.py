"""Which kernels of a profile belong to which row."""
