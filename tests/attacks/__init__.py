"""Attacks on root's daemon by an unprivileged user, one file per kind; `make attacks` runs them all, as root.

Each test plays the attacker with real processes and states what must not happen. A test that reproduces a fault names
the commit on which the attack succeeded. Rows: config/doc/security.md.
"""
