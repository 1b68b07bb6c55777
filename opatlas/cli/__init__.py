"""The command `opatlas`: a file for each command."""
