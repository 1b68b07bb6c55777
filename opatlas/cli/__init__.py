"""The command `opatlas`: a file for each command, of the same name, or for commands of one theme, and these.

main.py                         the table of the commands, and what runs each; bench, collectives and shapes run pytest
app.py                          the options of all commands, and the help (cyclopts)
query.py, show.py               opatlas query and export; show and report
compare.py, databases.py        opatlas compare and history; combine and fetch
trace_to_csv.py                 python -m: a Chrome trace as a table
"""
