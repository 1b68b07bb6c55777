"""Captures of profilers: their durations in the Profiling columns of a database, and their samples for single rows.

A kind of capture is a file with a `CaptureReader`, and an entry in `capture_discovery.KINDS`. The reader tells kernel
types, slots, durations and counters of launches (`CapturedLaunches`), and what it did not understand, with its time.

ingest.py               the steps of an ingest
capture_discovery.py    the kinds of captures; finds their files, and identifies them by their bytes
capture_reader.py       reads kernel_details and op_summary files, and databases as such
ascend_database.py      databases of Ascend's profilers as the table that kernel_details would hold
launches.py             groups the launches of one file by their cells, and counts those left out
nsys.py                 reads the kernels of exports of nsys
single_launches.py      reads the launches of a file one by one; busy and idle time, steps, streams
cases.py                groups the launches of several files, and of several ingests, by signature; their samples
apply.py                writes the statistics into the CSVs
profile_samples.py      samples of rows from msprof's profiles
attention_recorder.py   records the sequence lengths of attention calls in a serving process
attention.py            reads these records, and fills the Runtime columns of attention rows
traces.py               reads the events of Chrome traces
torch_trace.py          reads a trace of torch.profiler: device events, their launches, the operators around these
cuda_graphs.py          pairs the kernels of CUDA graphs with the launches that were captured
torch_launches.py       the row of each device event of a trace, or why it has none
torch_operators.py      the rows of torch's operators
operator_rows.py        rows from tensors, numbers and strides of operators
"""
