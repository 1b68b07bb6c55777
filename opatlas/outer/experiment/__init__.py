"""The arithmetic of an experiment with models that write kernels: pass rates, costs, choice of a model.

outcomes.py    what models achieved at tasks, from the attempts of one or more runs
tables.py      pass rates with intervals, errors, speed-ups
strategies.py  strategies that choose a model for each task
command.py     `opatlas score`, of a suite, too
"""

from opatlas.extensions import Command

COMMAND = Command(
    "Kernels", "score kernels that a suite or an experiment judged", "opatlas.outer.experiment.command:score"
)
