"""The files of a database: CSVs, journals, histories and locks, write-back, and the combining of databases."""
