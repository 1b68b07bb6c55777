"""The arithmetic of an experiment with models that write kernels: pass rates, costs, choice of a model."""
