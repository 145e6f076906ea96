"""HTTP with JSON on a unix socket: the daemon's side (api, peer credentials) and the client's."""
