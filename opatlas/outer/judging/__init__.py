"""Judges kernels that a person or a model wrote (docs/candidates.md).

judgement.py      levels, classes, the judgement of one candidate, and the outcome by what the court found
rules.py          the syntax tree of a candidate, the rules on it, and the judgement by them (L1)
failures.py       runs a candidate, and finds the class of its failure (L2)
judged_replay.py  judges a candidate on a row: the steps that all candidates have in common (L2 to L4)
trial.py          calls a candidate with the inputs that it gets, and hands its results in; finds replaced functions,
                  hooks and threads
court.py          makes inputs, and compares results, in a process where the candidate never ran
court_process.py  that process, and the way to it; failures.py has pytest's control of it
memory.py         tensors in memory that both processes share, and the inputs of calls
results.py        types of results (L2), and whether they are right (L3)
"""
