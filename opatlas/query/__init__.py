"""Asks a database for durations: of rows that it has, and of shapes between and beyond them.

result.py       what a question gets: a duration, its interval, and from which rows
question.py     what is asked: a kernel type and the cells of a row, as far as they are known
stored_rows.py  the rows of one kernel type in one database, found by signature or by some of their cells
answers.py      the answers to many questions at once
database.py     `opatlas.open`: the implementations of a device, and the questions that it answers

Imports neither torch nor pytest.
"""
