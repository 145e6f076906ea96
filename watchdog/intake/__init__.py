"""Where agents' own messages arrive: the sd_notify sockets."""
