"""What is timed: a package for each library whose kernels can be chosen."""
