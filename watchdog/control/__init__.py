"""The HTTP API on the control socket (JSON on a unix socket): listener, peer credentials, schemas."""
