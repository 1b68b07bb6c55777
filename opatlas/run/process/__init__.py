"""The processes that hold devices: pytest starts them, gives them jobs, and ends them with all that they have started.

fresh_python.py    starts Python on a module, without the working folder and without changed caches of bytecode
child.py           a command under its keeper, from start to end
keeper.py          ends all descendants of a command; the end of a process with its parent, and orphans
messages.py        what pytest and the processes tell each other
channel.py         carries messages, whatever a kernel does to its descriptors
device_process.py  the scheduler of one device, in pytest
device_main.py     the process of one device
"""
