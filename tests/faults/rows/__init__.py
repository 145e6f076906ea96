"""The faults, a file for each kind. A file has a list `ROWS` of `table.Row`; that is all."""
