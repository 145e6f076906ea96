"""All code that touches an owner's files, git or terminals. It runs as that owner's uid, in a process that can be
killed.

It imports only core and errors, and decides nothing about another uid's process or path. `helper` is the process: JSON
lines in and out, one table of calls.
"""
