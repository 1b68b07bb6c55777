"""Judges candidate kernels, which a person or a model wrote: levels, error classes, rules on their source.

judgement.py       levels, classes, the judgement of one candidate, and the error of one that a guard refuses
answer.py          the code in a model's answer (L0)
source.py          the syntax tree of a candidate, with imported names resolved
static_rules.py    the table of rules on a source, and the judgement by them (L1)
kernel_rules.py    rules: whether a kernel computes the results
process_rules.py   rules: what a candidate does to its process
text_checks.py     KernelBench's text checks, for comparison
error_class.py     the class of a failure, the sub-class of a wrong result (L2, L3)
own_kernels.py     the share of time in kernels that the candidate defines
floor.py           durations that no device can reach
complexity.py      the classes C1 to C4 of tasks

Imports no torch. The guards around calls are in opatlas/outer/guards.
"""
