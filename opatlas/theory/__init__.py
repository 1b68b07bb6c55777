"""Theory rows: kernel calls that follow from the architectures of models, for databases with few captured rows.

plan.py             plans the theory rows of a kernel type, and appends them
catalog.py          reads catalog.yaml: the patterns of each kernel type
patterns.py         the pattern of a kernel's calls, as arithmetic
space.py            theory rows, and the space of rows that a pattern spans
sources.py          the sizes that models give to a pattern
models.py           facts about a model
model_parts.py      latent attention, indexers, linear attention, experts
model_calls.py      the calls of a step of a model
step_calls.py       one of them, by a pattern
config_json.py      the models that config.json files describe
model_kinds.py      their keys by kind of model, with types and defaults
known_rows.py       the rows of a database as theory rows see them, and the models that they cover
refused_shapes.py   the shapes that DispatchFFNCombine accepts
"""
