"""Suites of cases: operators of torch, called with the samples of torch's OpInfo or as models call them.

overload.py     names of operators, and of their folders
arguments.py    the text of an operator's arguments
trace_file.py   reads traces of models
listing.py      lists the rows of a suite, in a process of its own (lister.py)
operators.py    schemas of operators, in-place and out variants
opinfo.py       the samples of OpInfo
trace_call.py   the call of a line of a trace
case.py         the case on a device: makes its call, and checks results
suite_replay.py times torch or a library for a case
candidate.py    judges a kernel of a user for a case

docs/candidates.md says how to use them.
"""
