"""Says why kernels are slow, and what to do about it."""
