"""Whether the durations of a database fit this machine: a few rows of it, measured here and compared."""
