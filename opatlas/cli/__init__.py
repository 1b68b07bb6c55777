"""The command `opatlas`: a file for each command.

main.py                         the table of the commands
sessions.py                     opatlas bench, collectives and shapes, which run pytest
implementations.py              opatlas implementations: a list of them, with proofs
build.py                        its --build: runs small rows
kernel_template.py              its --new: files for kernels of one's own
kernel_rows.py                  small rows of a database for both
ingest.py                       opatlas ingest: captures into a database
combine.py                      opatlas combine: several databases into one
show.py                         opatlas show: rows, quality and devices
plot.py                         opatlas plot: figures
check.py                        opatlas check: the checks of a database, as pytest cases
history.py                      opatlas history: durations by run; rebuilds CSVs
kernels.py                      opatlas show --kernels: kernel types with a replay
doctor.py                       opatlas doctor: whether this machine can measure
trace_to_csv.py                 python -m: a Chrome trace as a table
probe_dispatch_ffn_combine.py   python -m: the shapes that DispatchFFNCombine accepts
"""
