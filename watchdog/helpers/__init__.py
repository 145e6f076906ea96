"""The daemon's side of the owners' helper processes: pool, transient units, users and groups."""
