"""The command `opatlas`: a file for each command, of the same name, and these.

main.py                         what runs a command
commands.py                     the table of the commands
app.py                          the options of all commands, and the help (cyclopts)
guard.py                        errors become a line and an exit status
parameters.py                   types of parameters that several commands have
sessions.py                     opatlas bench, collectives and shapes, which run pytest
superkernel.py                  opatlas diagnose --superkernel
kernels.py                      opatlas show --kernels
build.py, kernel_template.py    opatlas implementations --build and --new
kernel_rows.py                  small rows of a database for both
trace_to_csv.py                 python -m: a Chrome trace as a table
probe_dispatch_ffn_combine.py   python -m: the shapes that DispatchFFNCombine accepts
"""
