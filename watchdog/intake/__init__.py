"""Where agents' own words come in: the sd_notify sockets."""
