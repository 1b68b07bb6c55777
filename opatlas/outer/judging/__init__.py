"""Judges kernels that a person or a model wrote (docs/candidates.md).

judgement.py      levels, classes, the judgement of one candidate, and the error of one that a guard refuses
source.py         the syntax tree of a candidate, with imported names resolved
rules.py          the rules on a source, and the judgement by them (L1)
failures.py       runs a candidate, and finds the class of its failure (L2)
judged_replay.py  judges a candidate on a row: the steps that all candidates have in common (L2 to L4)
trial.py          calls a candidate with inputs that change between calls (input_sets.py), and judges the results
results.py        whether results are plain, written, right (L3), and the same as those of other calls
process_guard.py  finds replaced parts of the process, and restores the settings of torch
"""
