"""The TOML file: strict schema -> frozen settings; default paths; readable error messages."""
