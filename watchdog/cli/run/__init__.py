"""The parts of the resident `agent-watchdog run`: one runs beside each agent, so standard library only, and little."""
