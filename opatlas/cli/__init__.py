"""The command `opatlas`: a file for each command, of the same name, and these.

main.py                         what runs a command
commands.py                     the table of the commands
app.py                          the options of all commands, and the help (cyclopts)
guard.py                        errors become a line and an exit status
sessions.py                     opatlas bench, collectives and shapes, which run pytest
kernels.py                      opatlas show --kernels
build.py, kernel_template.py    opatlas implementations --build and --new
trace_to_csv.py                 python -m: a Chrome trace as a table
"""
