"""Asks models for kernels, and for repairs of kernels that fail.

endpoint.py        asks a model at an endpoint that takes OpenAI's chat completions
answers.py         recorded exchanges, which answer without an endpoint
models_file.py     the file of models: endpoints, prices, language, limits; prices.yaml has the prices that ship
prompt.py          the messages for a task and a repair (prompts.yaml has the sentences); the code in an answer (L0)
attempts.py        the loop of attempts, and their file
session_models.py  `--models`: the loop in place of a row's only run
"""
