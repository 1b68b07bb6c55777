"""The arithmetic of an experiment with models that write kernels: pass rates, costs, choice of a model.

attempts.py     the record of one attempt, and the file of attempts
baselines.py    durations of the tasks' own models
outcomes.py     what models achieved at tasks, from the attempts of one or more runs
proportions.py  intervals of pass rates
tables.py       pass rates, errors, levels, verdicts, speed-ups
strategies.py   strategies that choose a model for each task
report.py       all tables together, and as JSON
"""
