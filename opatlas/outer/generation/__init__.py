"""Asks models for kernels, and for repairs of kernels that fail; evaluates what they achieve.

endpoint.py        asks a model at an endpoint that takes OpenAI's chat completions, or answers from recorded exchanges
models_file.py     the file of models: endpoints, prices, language, limits; prices.yaml has the prices that ship
prompt.py          the messages for a task and a repair (prompts.yaml has the sentences); the code in an answer (L0)
attempts.py        the loop of attempts, and their file
session_models.py  `--models`: the loop in place of a row's only run
experiment.py      what models achieved at tasks: pass rates with intervals, costs, speed-ups; ways to choose a model by
                   that, also as a route
score_command.py   `opatlas score`, of a suite, too; error classes
"""

from opatlas.installation import Command

COMMAND = Command(
    "Kernels", "score kernels that a suite or an experiment judged", "opatlas.outer.generation.score_command:score"
)
