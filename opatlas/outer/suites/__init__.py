"""Suites of cases: operators of torch, called with the samples of torch's OpInfo or as models call them.

texts.py      names of operators, the text of an operator's arguments, traces of models
listing.py    `--suite`: lists the rows of a suite, in a process of its own; files to begin kernels with
operators.py  schemas of operators, in-place and out variants
opinfo.py     the samples of OpInfo
case.py       a case on a device: makes its call, and checks results
replay.py     times torch or a library for a case, or judges a kernel of a user
score.py      how many cases and operators are right, and how fast they are beside torch
override.py   `opatlas.use`

docs/candidates.md says how to use them.
"""
