"""The database of measured operator durations: CSV files, one per kernel type.

Nothing here knows of torch or pytest. `python -m database --help` lists the commands.
"""
