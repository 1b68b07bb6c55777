"""Comparison of databases that have the same rows: implementations of kernels, or states of a database over time.

databases.py        which databases are compared, and their names
states.py           a database at a git revision, in a run, or by its captures
calls.py            what one database has of a row, and two against each other
comparison.py       the rows of all databases side by side, and the figures of each rival
steps.py            steps of many rows, and what all rows have in common
regressions.py      those of the rows of a database over its runs
"""
