"""The vendors' own programs, from npm, against a model server that plays scripts: what the daemon makes of each."""
