"""Instruments, which measure durations: one file for each, with the Protocol in instrument.py.

instrument.py       the Instrument protocol, settings, samples, and the table of names
timers.py           the instruments that time whole calls: clock and events
kernel_records.py   the instrument that times kernels alone, on a GPU
cupti.py            the records of CUPTI, for kernel_records.py
npu_profilers.py    the instruments that read an NPU's profile: msprof, torch_npu.profiler
attribution.py      assigns the kernels of a profile to rows
stop_rule.py        when a row has enough samples
sample_filters.py   discards disturbed samples
"""
