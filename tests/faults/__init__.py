"""The table of faults: what is done to the daemon and its agents on purpose, and what must come of it.

`table` says what a row is, how much of it a run does, and prints what came of all. Each file in `rows/` has a list
`ROWS`; a new file there is found by itself. `make faults` runs all rows, each a twentieth of its runs; `FULL=1 make
faults` all of everything, and writes RESULTS.md. In CI `SEED` picks.
"""
