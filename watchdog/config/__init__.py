"""The TOML file: strict schema -> frozen settings; paths, and errors in sentences."""
