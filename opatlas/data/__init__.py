"""The files of a database, and what joins and compares databases.

database.py        the folders and locks of a database
csv_files.py       reads and writes CSVs
header.py          the header of a CSV
cells.py           the cells that a record fills, and edits of a table
journal.py         the records of a session, before any CSV is changed
own_lines.py       tells the lines of a journal that its process wrote
log.py             the records of all runs, and what else happened to the rows
logged_rows.py     looks up rows in the log
candidates.py      what runs and other tables have of a row, and what a fold took of it
fold.py            which candidates a row gets; the only writer of CSVs
write_back.py      folds the records of sessions into the CSVs
update_mode.py     --update-mode: which rows a session runs, and whether it appends rows
edited.py          rows that were changed after their run
pruned.py          rows without a duration, moved to pruned/
restore.py         folds all runs into the CSVs again, and moves pruned rows back
row_copy.py        copies rows without their durations
row_history.py     the durations of rows in each run
manifest.py        the manifest of a run, the order of runs, and their pace
ingests.py         the ingests of captures: their manifests and files
origin.py          the device and software of durations
comparable.py      which durations compare
combine.py         combines databases and journals into one database
combine_table.py   combines two tables: cells and conflicts
pool.py            pools the runs of each row
op_mapping.py      op_mapping.yaml, for simulators
"""
