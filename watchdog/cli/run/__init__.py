"""The resident `agent-watchdog run`: there is one per agent, so it imports little, and only the standard library."""
