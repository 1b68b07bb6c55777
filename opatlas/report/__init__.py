"""Reports: numbers of rows as text, the files of a session, plots."""
