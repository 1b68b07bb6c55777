"""Ingest: raw profiler captures become the profiling columns of a database.

capture.py     streams a kernel_details or op_summary file
aggregate.py   groups its rows into cases, and accounts for those left out
attention.py   the Runtime columns of attention kernels
apply.py       brings the cases into the CSVs
summary.py     tells the user what happened
command.py     `python -m database ingest`
"""
