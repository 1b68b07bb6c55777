"""msprof as the instrument: a device process runs under it, and its life is one profiling session."""
