"""Asks a database for durations: of rows that it has, and of shapes between and beyond them.

database.py        `opatlas.open`: the implementations of a device, and the questions that they answer
question.py        a question, completed by what the rows have; its answer: a duration, its interval, its rows
answering_rows.py  the rows of a kernel type that answer, found by signature or by some of their cells
implementation_answers.py  the answers of each implementation of a database, and those about collectives
predictor.py       durations of rows that are not stored; fitted models on disk
kernel_model.py    the model of a kernel type: smoothers, and calibrated intervals
smoother.py        a fitted roofline, and kriging of the deviations from it
features.py        work, sizes and regime of a row
model_cost.py      the cost of a step of a model: the durations of its calls, and their sum
next_rows.py       which rows to measure next, for steps of models

Imports neither torch nor pytest.
"""
