"""Events that no command of `[notify]` can be told of, and what to name instead."""

UNTOLD: dict[str, str] = {
    "daemon.starting": "daemon.ready",
    "daemon.stopped": "daemon.stopping",
    "daemon.failed": "OnFailure= in the unit, as the daemon has ended by then",
    "agent.starting": "agent.registered",
    "agent.ending": "kill.requested",  # these four stand in the history only
    "agent.spared": "kill.withdrawn",
    "agent.unkillable": "kill.unkillable",
    "log.message": "an event of ours, as these are libraries' own words",
    "notify.failed": "none: the command would be told of itself",
    "notify.dropped": "none: the command would be told of itself",
    "notify.recovered": "none: the command would be told of itself",
}
