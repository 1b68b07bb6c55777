"""Comparison of databases that have the same rows: implementations of kernels against each other.

databases.py        which databases are compared, and their names
calls.py            what one database has of a row
verdict.py          two calls of a row against each other
comparison.py       the rows of all databases side by side, and the figures of each rival
text.py             the comparison for a terminal and as Markdown
export.py           the comparison as JSON and CSV
"""
