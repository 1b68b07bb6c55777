"""What a machine offers for measuring, found out one thing at a time; the command `opatlas doctor`."""
