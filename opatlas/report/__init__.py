"""Reports: numbers of rows as text, the files of a session, plots.

row_summary.py      the numbers of rows as text and tables
session_report.py    the two files of a session beside the CSVs
plots/              figures
"""
