"""Says why kernels are slow, and what to do about it.

rules.yaml     the verdicts with their tests, thresholds and sources; rules.py reads it
advice.yaml    what to do for each verdict, and which API does it; advice.py reads it
kernels.py     the kernels of a capture or of a database as one table
peaks.py       the peaks and cores of the device, and the roofline share of each kernel
verdicts.py    applies the rules to all kernels at once
diagnosis.py   verdicts, time lost and ranking of a capture or database
prompt.py      what a model is asked for: the kernel, its counters, verdicts and constraints
changes.py     two diagnoses side by side
report.py      all of this as JSON
"""
