"""All that touches an owner's files, git or terminals. It runs as that owner's uid, in a process that can be ended.

It imports core and errors only, and decides nothing about another uid's process or path. `helper` is the process: JSON
lines in and out, one table of calls.
"""
