"""The model of a row: columns, tensor slots, signature, record and status, quality of samples, place of a database."""
