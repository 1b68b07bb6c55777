"""Combines separately measured databases, pools their runs, and rebuilds CSVs from histories.

apply.py        combines source databases into a target
sources.py      opens the sources, and checks that they are comparable
table.py        combines two tables: cells and conflicts
summary.py      the summary of a combination, and the CSV of its conflicts
provenance.py   the device and software of durations, and whether durations are comparable
pool.py         pools the runs of each row
rebuild.py      rebuilds CSVs from histories and ingests
"""
