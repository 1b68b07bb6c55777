"""What a machine offers for measuring, found out one thing at a time; the command `python -m bench doctor`."""
