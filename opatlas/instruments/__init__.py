"""How durations are taken: an instrument a file, behind the Protocol in instrument.py."""
