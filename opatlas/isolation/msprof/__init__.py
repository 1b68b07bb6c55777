"""msprof as the instrument: a device process runs under it, and its life is one profiling session.

executor.py     runs rows in profiling sessions
command.py      the command lines of msprof
pending.py      rows whose samples are in msprof's output, also after a killed session
"""
