"""What others depend on: routes, verbs, events, tables, metrics and keys, held to a record in `recorded/`.

It knows nothing of the package but its commands, its sockets and its files, so it outlives any change of the layout.
`pytest tests/wire` compares; `python -m tests.wire` records anew and prints what has changed.
"""
