"""The functions that are timed: a package for each library of kernels."""
