"""Ingest: raw profiler captures become the profiling columns of a database.

ingest.py         the steps, from captures to CSVs; the Profiling cells made anew from what ingests have left
files.py          which files are given, known by their bytes
capture.py        streams a kernel_details or op_summary file
capture_header.py tells its columns
aggregate.py      groups its rows into cases, and accounts for those left out
attention.py      the Runtime columns of attention kernels
manifest.py       what an ingest was
samples_file.py   the samples of an ingest, in a file
pool.py           statistics over the samples of several ingests
apply.py          brings them into the CSVs
report.py         the durations that changed
summary.py        tells the user what happened
command.py        `opatlas ingest`
samples.py        samples out of msprof's profiles, for rows that a session replays
"""
