"""Asks a database for durations: of rows that it has, and of shapes between and beyond them.

result.py          the answer to a question: a duration, its interval, and its rows
question.py        a question: a kernel type and the known cells of a row
compositions.py    whether a duration is that of a composition of torch operators
answering_rows.py  the rows of a kernel type that answer, found by signature or by some of their cells
completion.py      the dtypes, formats and outputs of a question, from the rows
features.py        work, sizes and regime of a row
fitted_roofline.py a roofline whose peaks are fitted
kriging.py         values between rows, with deviations
kernel_model.py    the model of a kernel type: a fitted roofline, kriging, and calibrated intervals
model_cache.py     fitted models on disk, by a hash of their rows
predictor.py       durations of rows that are not stored
answers.py         the answers to many questions at once
implementation_answers.py  the answers of each implementation of a database
database.py        `opatlas.open`: the implementations of a device, and the questions that they answer
export.py          the rows for other tools: one long table, and the tables of aiconfigurator
msmodeling.py      a data source for msmodeling's simulations
stack.py           which implementations answer for the steps of a model
collectives.py     durations of messages between devices
typed_rows.py      rows as typed columns
next_rows.py       which rows to measure next, for steps of models
model_cost.py      the cost of a step of a model: the durations of its calls, and their sum

Imports neither torch nor pytest.
"""
