"""Processes that pytest starts and watches: the device process, from outside and from inside, and what ends it."""
