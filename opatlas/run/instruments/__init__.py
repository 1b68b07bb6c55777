"""Instruments, which measure durations.

instrument.py       the Instrument protocol, settings, samples, and when a row has enough of them
timers.py           the instruments that time whole calls: clock and events; filters of disturbed samples
kernel_records.py   the instrument that times kernels alone, on a GPU
cupti.py            the records of CUPTI, for kernel_records.py
npu_profilers.py    the instruments that read an NPU's profile: msprof, torch_npu.profiler
attribution.py      assigns the kernels of a profile to rows
"""
