"""The model of a row: columns, tensor slots, signature, record and status, quality of samples, place of a database.

columns.py          the columns of the CSVs, and the statuses
slots.py            shape, dtype and format of each tensor
signature.py        which rows are the same case; row ids
same_case.py        comparison of launches with rows
siblings.py         sibling kernel types
record.py           the record of one row in one run
quality.py          the quality of samples, and their noise
roofline.py         peaks of devices; bytes and operations of a row
communication.py    the collectives: kernel types, sizes, bandwidths
row_kind.py         kernels and collectives: the differences between their tables
versions.py         the versions of the software, without torch
location.py         the folder of a database
errors.py           errors of a row, with their statuses, and of a device
"""
