"""Captures of profilers: their durations in the Profiling columns of a database, and their samples for single rows.

ingest.py               the steps of an ingest
capture_discovery.py    finds capture files, and identifies them by their bytes
capture_reader.py       streams the rows of a kernel_details or op_summary file
single_launches.py      reads the launches of a file one by one
launches.py             groups the rows of one file, and counts the rows left out
cases.py                groups the launches of several files, and of several ingests, by signature; their samples
apply.py                writes the statistics into the CSVs
profile_samples.py      samples of rows from msprof's profiles
attention_recorder.py   records the sequence lengths of attention calls in a serving process
attention_records.py    reads these records
attention.py            fills the Runtime columns of attention rows
time_shares.py          shares of the captured device time
traces.py               turns a Chrome trace into a table
"""
