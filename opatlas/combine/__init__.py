"""Combine: databases and journals that were measured apart become one database.

sources.py     the databases and journals that a user names, and whether they may be combined
runs.py        manifests, histories, and durations that were not taken
table.py       one table into another, group of columns by group of columns
counts.py      how many rows there are, and how many of them have a duration
pool.py        what all runs together say of a row
apply.py       all tables, pruned rows and manifests into the CSVs of a database
summary.py     tells the user what happened, and lists the conflicts
command.py     `opatlas combine`
"""
