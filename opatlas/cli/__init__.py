"""The command `opatlas`: a file for each command, of the same name, and these.

main.py                         the table of the commands, and what runs each; bench, collectives and shapes run pytest
app.py                          the options of all commands, and the help (cyclopts)
query.py, show.py               opatlas query and export; show and report
trace_to_csv.py                 python -m: a Chrome trace as a table
"""
