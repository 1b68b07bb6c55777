"""Processes that pytest starts and watches: the device process, its control from pytest, and its end.

executor.py             the protocols of the objects that run jobs: Executor, BatchExecutor
in_process.py           an Executor in pytest itself (--in-process)
device_pool.py          an Executor of several devices; devices that are excluded
profile_executor.py     an Executor of profiles that exist (--prof-path)
device_process.py       the Executor of a device process, seen from pytest
device_main.py          the device process, from inside
groups/                 groups of processes, for rows that need several devices
msprof/                 device processes under msprof
child.py                starts and ends a process with all its descendants
keeper.py               the parent of each of these processes, which ends the descendants
process_end.py          quick exit, adoption of orphans, parents and children
channel.py              messages between pytest and a process
fresh_python.py         a Python that imports nothing from the working folder
"""
