"""Observations of an agent from outside: processes, CPU, output growth, heartbeat files, panes, prompts."""
