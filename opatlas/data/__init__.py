"""The files of a database: CSVs, journal, log, manifests; the fold of runs into CSVs; several databases in one."""
