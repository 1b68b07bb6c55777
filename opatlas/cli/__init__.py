"""The command `opatlas`: a file for each command, of the same name, and these.

main.py                         what runs a command; errors become a line and an exit status
commands.py                     the table of the commands
app.py                          the options of all commands, and the help (cyclopts)
sessions.py                     opatlas bench, collectives and shapes, which run pytest
query.py                        opatlas query and export
trace_to_csv.py                 python -m: a Chrome trace as a table
"""
