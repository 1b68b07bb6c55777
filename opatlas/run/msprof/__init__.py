"""msprof as an instrument: a device process runs under msprof, and one process is one profiling session.

sessions.py   runs rows in profiling sessions
pending.py    rows whose samples are in msprof's output, also after a killed session
"""
