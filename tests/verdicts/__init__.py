"""The table of verdicts: situations of agents, each with its right verdict. 0 false kills, 0 missed stalls.

`table` says what a row is and prints what came of all, with the confusion matrix. Rows live in scenes, since many
agents of one daemon cost no more than one: a scene is one daemon, a story, and a row for each agent in it. Each file
in `scenes/` has a list `SCENES`; a new file there is found by itself.

`stage` plays a scene with a real daemon, real agents and short times; `hours` with all parts of a daemon in our own
loop, real processes and datagrams, the limits of the shipped configuration, and a clock that we move. `make verdicts`
plays all scenes; in CI `SEED` picks a part of those that are alike.
"""
