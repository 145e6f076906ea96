"""Every event that the daemon logs: level, meaning, what to do; names are stable. config/doc/events.md is the table."""

import logging
from dataclasses import dataclass

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


@dataclass(frozen=True, slots=True)
class EventSpec:
    """One event: its level, its meaning in one line, and what who is paged does about it ("": nothing needs doing)."""

    level: int
    text: str
    act: str = ""


CATALOGUE: dict[str, EventSpec] = {
    "daemon.starting": EventSpec(INFO, "the daemon has read its configuration and begins"),
    "daemon.ready": EventSpec(INFO, "the sockets are open and the first sweep is planned"),
    "daemon.runtime_dir_taken": EventSpec(
        WARNING,
        "another user has a file at the usual place of our sockets in /tmp; another directory beside it is used",
        "clients find it by themselves; the file is that user's to explain",
    ),
    "config.reloaded": EventSpec(
        INFO, "the configuration was read anew and holds; says which keys changed, and which wait for a restart"
    ),
    "config.invalid": EventSpec(
        ERROR,
        "the configuration that was read anew cannot be used: the former one holds; says each fault",
        "mend the file (`agent-watchdogd --check`), then reload",
    ),
    "daemon.stopping": EventSpec(INFO, "the daemon was asked to stop; agents go on living"),
    "daemon.stopped": EventSpec(INFO, "the daemon ends"),
    "stop.overdue": EventSpec(
        ERROR,
        "the daemon did not end within 20 s, and ends by force; says what was waited for",
        "look at what the line names: a disk, a server, a program that hangs; no step of a kill or cleanup is lost",
    ),
    "stop.unreleased": EventSpec(
        ERROR,
        "a lock could not be let go at an end by force",
        "the next start may say that one runs already; the line has the error",
    ),
    "call.stuck": EventSpec(
        WARNING,
        "something that the daemon waits for has not answered for 5 s; it goes on without, and asks again afterwards",
        "look at what the line names (NSS, a directory, the registry's disk); `status` shows it until it has returned",
    ),
    "call.returned": EventSpec(INFO, "what `call.stuck` named has answered"),
    "daemon.failed": EventSpec(
        ERROR,
        "the daemon ends because of a fault of its own",
        "the line says what is wrong; systemd starts it anew unless it is the configuration (`--check`)",
    ),
    "sweep.summary": EventSpec(INFO, "sweeps of the last ten minutes in figures"),
    "sweep.finished": EventSpec(DEBUG, "one sweep in figures"),
    "sweep.overrun": EventSpec(
        WARNING,
        "a sweep took longer than the interval; the next one is late",
        "is the host overloaded? Else a longer `sweep.interval_seconds`",
    ),
    "sweep.scan_failed": EventSpec(
        ERROR,
        "/proc could not be read; no tree and no activity is known from this sweep",
        "is /proc mounted, and without `hidepid`? Until then nobody is seen busy",
    ),
    "process.unreadable": EventSpec(
        WARNING,
        "a read of that process's file below /proc hangs: what it does is unknown, an agent whose main process it is is"
        " neither dead nor stale, and can be killed",
        "its user (`uid`) can make that happen: end the process, or the file system (FUSE, NFS) that it waits for",
    ),
    "process.readable": EventSpec(INFO, "that process can be read again, or has ended"),
    "sweep.failed": EventSpec(
        ERROR,
        "a sweep raised; nobody was judged by it",
        "a fault of ours: please report it with its `exception`; nobody is ended meanwhile",
    ),
    "sweep.recovered": EventSpec(INFO, "sweeps work again; says how many failed"),
    "scheduler.dead": EventSpec(
        ERROR,
        "no sweep ended for three intervals, 30 s at least, and no nudge helped, or the event loop stood still for so"
        " long; the daemon ends with 70",
        "systemd starts it anew; if it comes again, report it",
    ),
    "job.failed": EventSpec(
        ERROR,
        "one of the daemon's jobs beside the sweep raised; it runs again, and this is said once until a run works",
        "a fault of ours: please report it with its `exception`",
    ),
    "job.recovered": EventSpec(INFO, "a job that had failed works again"),
    "clock.stepped": EventSpec(
        WARNING, "the wall clock was set; nobody's silence changes by it", "nothing; if it comes often, look at NTP"
    ),
    "clock.gap": EventSpec(
        WARNING,
        "the daemon did not watch for a while (suspend, overload); everybody gets one fresh limit of silence",
        "nothing after a suspend; else the host is overloaded",
    ),
    "agent.registered": EventSpec(INFO, "an agent is watched from now on"),
    "agent.starting": EventSpec(INFO, "a queued agent is being started"),
    "agent.row_lost": EventSpec(
        WARNING,
        "somebody removed the row of a living agent from the registry; nothing is done to it",
        "its next heartbeat writes the row anew; who never beats has to be registered again",
    ),
    "agent.not_copied": EventSpec(
        WARNING,
        "the copy of an agent's registration, for the case that an older registry is put back, could not be written",
        "see `error`; nothing else depends on it",
    ),
    "agent.row_restored": EventSpec(INFO, "it beat, and its row was written anew"),
    "agent.pid_known": EventSpec(INFO, "the agent's main process is known"),
    "agent.owner_changed": EventSpec(INFO, "the main process dropped from root to a user, who owns the agent for good"),
    "agent.untouchable": EventSpec(
        INFO,
        "the main process runs with other uids than its owner's (sudo, su); its places are left alone meanwhile",
    ),
    "agent.first_beat": EventSpec(INFO, "the first beat; from now on silence counts"),
    "agent.late": EventSpec(
        WARNING,
        "silent for longer than agreed; not confirmed, or other activity is seen",
        "nothing yet; `agent-watchdog why AGENT`",
    ),
    "agent.recovered": EventSpec(
        INFO, "an agent that was late or stalled beats again, or an unknown one can be judged"
    ),
    "agent.stalled": EventSpec(
        WARNING,
        "silent for longer than agreed, confirmed, with no sign of activity",
        "nothing: it is ended next. Often the same kind of agent? `--stall-after` or a `[[policy]]`",
    ),
    "agent.expired": EventSpec(
        WARNING, "the agent's time to live is over", "nothing; `--ttl` when it should live longer"
    ),
    "agent.gone": EventSpec(INFO, "the main process is proved absent"),
    "agent.unknown": EventSpec(
        WARNING,
        "the look at the agent failed; nothing is concluded from it",
        "`why AGENT` says which look fails (rights, `hidepid`, a beat file); it is not ended for it",
    ),
    "agent.waiting": EventSpec(INFO, "the agent waits, on a lease or for somebody"),
    "agent.needs_human": EventSpec(
        WARNING,
        "the agent has waited for a human for longer than the prompt limit, by its word or its tmux pane",
        "answer its prompt, or end it; who says that it waits is waited for without limit",
    ),
    "agent.human_answered": EventSpec(INFO, "an agent that needed a human waits for none any more"),
    "agent.expires_soon": EventSpec(
        WARNING,
        "a tenth of the agent's time to live is left, or five minutes; then it is ended",
        "let it end its work; a longer `--ttl` only holds for a new one",
    ),
    "agent.wait_capped": EventSpec(
        WARNING,
        "an agent asked to be silent for longer than wait_limit; it is cut to that, told once",
        "right if it waits for ever; else a larger `wait_limit_seconds` in its `[[policy]]`",
    ),
    "agent.lingering": EventSpec(
        WARNING,
        "the agent said `done` and is still there",
        "nothing: it is ended next; with `linger_seconds = 0` end it yourself",
    ),
    "agent.told": EventSpec(
        WARNING,
        "an agent's verdict would end it; its ladder says so first, or says no more than that",
        "decide: `agent-watchdog kill AGENT`, or give its `[[policy]]` a ladder with `kill`",
    ),
    "agent.beat_file_unread": EventSpec(
        WARNING,
        "a heartbeat file cannot be read or written; its agent is unknown until wait_limit",
        "may its owner read the file, and is its disk there?",
    ),
    "source.ghost": EventSpec(
        INFO, "an entry of a foreign registry was closed: its process had gone, or another one has its pid by now"
    ),
    "source.entry_kept": EventSpec(
        WARNING,
        "an entry of a foreign registry whose process has gone could not be closed",
        "the line says why; tried again",
    ),
    "source.entry_gone": EventSpec(
        WARNING,
        "an agent lives, and the registry that told of it does not any more",
        "nothing is done: it is watched on, its silence is not counted any more",
    ),
    "source.drift": EventSpec(
        WARNING,
        "a foreign registry and what runs disagree",
        "nothing is done by it: the line says why, and `list` shows it as long as it is so",
    ),
    "source.unread": EventSpec(
        WARNING,
        "a [[source]] cannot be read or written, or not all of it: agents that only it knows are not reported, and"
        " those whose heartbeats it holds are unknown until wait_limit",
        "the line says why: is its disk full or read-only, a file damaged, locked, or closed to the daemon's uid?"
        " Reported again when it was read in between",
    ),
    "source.readable": EventSpec(INFO, "all of a [[source]] that could not be read can be read again"),
    "helper.unconfined": EventSpec(
        WARNING,
        "this host lacks a mechanism that confines the owners' helpers; they work without it; logged once for each",
        "`agent-watchdog doctor` says which one, and what it would take",
    ),
    "descriptors.exhausted": EventSpec(
        ERROR,
        "connections wait, as there is no file descriptor for them; said once, and no silence is held against anybody",
        "raise the unit's `LimitNOFILE`; who holds so many? `ls -l /proc/PID/fd`",
    ),
    "descriptors.back": EventSpec(INFO, "connections are taken again"),
    "agent.unpinned": EventSpec(
        WARNING, "no pidfd for an agent's process: a sweep finds its end", "see `descriptors.exhausted`"
    ),
    "cgroup.refused": EventSpec(
        WARNING,
        "agents of `run` get no cgroup of their own (systemd, or the kernel, refused); said once, until one gets it",
        "the line says why: is the bus there? Meanwhile trees are known by marker, session and descent",
    ),
    "cgroup.works": EventSpec(INFO, "agents of `run` get a cgroup of their own again"),
    "session.found": EventSpec(
        INFO, "a session that a shared service works for was heard of; says whose it is, or that this cannot be told"
    ),
    "agent.channel_lost": EventSpec(
        WARNING,
        "its beats cannot reach the daemon (its socket, the directory or the way to the daemon is gone; too many"
        " connections); its silence is the channel's, reported once and not held against it",
        "after a restart nothing; else is its runtime directory there, and who of that uid holds so many connections?",
    ),
    "agent.elsewhere": EventSpec(
        WARNING,
        "another daemon of this host watches this agent (`why` says whose): nothing is judged or cleaned up here, and"
        " what the agent says is passed on",
        "two daemons know one agent: is the second one wanted?",
    ),
    "agent.taken_over": EventSpec(
        WARNING,
        "the daemon that watched this agent is gone, or holds it no more; this one watches it, with fresh silence",
        "was that daemon meant to stop?",
    ),
    "agent.sockets_made_again": EventSpec(
        WARNING,
        "notify sockets of registered agents were gone from their directory, and were made again; their silence has one"
        " fresh limit",
        "who tidies up the runtime directory of a running daemon?",
    ),
    "agent.socket_blocked": EventSpec(
        ERROR,
        "the socket to which an agent sends its heartbeats is gone, and what lies in its place cannot be moved away;"
        " its silence is not held against it meanwhile, so a stall of it is found late",
        "move away what the line names, as the daemon's uid (`mv`; `umount` where something is mounted there); the"
        " socket is then made again by itself",
    ),
    "agent.socket_found": EventSpec(INFO, "the socket of an agent that could not be made lies at its place again"),
    "agent.spared": EventSpec(
        INFO, "an order to end the agent was called off after it was claimed; it was not signalled"
    ),
    "agent.ending": EventSpec(INFO, "the agent is being ended, or put in order after its end"),
    "agent.unkillable": EventSpec(
        ERROR, "processes of the agent cannot be ended; says which and why", "as with `kill.unkillable`"
    ),
    "agent.crashed": EventSpec(
        WARNING,
        "an agent ended by itself, and not well: by a signal, with an exit status that is not 0, or unseen",
        "`agent-watchdog why AGENT`: its last words, and how its conversation is taken up again",
    ),
    "agent.purged": EventSpec(
        INFO, "an operator had the conversation of an ended agent moved to the trash; says where"
    ),
    "agent.ended": EventSpec(INFO, "the agent is over and cleaned up; its row is closed"),
    "beat.rejected": EventSpec(
        WARNING,
        "a beat was not taken (wrong uid or process, malformed, a hook of a program that is not known); said once",
        "whoever speaks for the agent is of another uid, or its client is wrong; the line says which",
    ),
    "kill.requested": EventSpec(WARNING, "a kill was ordered; says by whom and why"),
    "kill.observed": EventSpec(
        WARNING, "observe mode: what would be ended now, and why", 'nothing; `mode = "enforce"` would end it'
    ),
    "kill.held": EventSpec(
        WARNING,
        "a kill that a verdict asks for is held back; says why",
        "see `hold.started`; budget: many are stalled at once, look why",
    ),
    "kill.resumed": EventSpec(INFO, "an order that an earlier daemon, or another host's, left is gone on with"),
    "kill.waiting": EventSpec(
        WARNING, "an order waits, as the registry cannot be written", "as with `registry.unavailable`"
    ),
    "kill.failed": EventSpec(
        ERROR,
        "an attempt at an order raised; it is tried again from its last committed step",
        "a fault of ours: please report it; it is tried again by itself",
    ),
    "agent.nudged": EventSpec(
        WARNING,
        "an agent was nudged by its ladder: a line typed into its tmux pane, or its command; says how that went",
        "see what it does (`agent-watchdog why AGENT`); the ladder's next step comes unless it beats",
    ),
    "agent.obeyed": EventSpec(INFO, "an agent beats again after a step of its ladder, which ends there"),
    "stop.keys": EventSpec(INFO, "an agent that is to stop got its exit keys typed into its tmux pane, or why not"),
    "stop.program": EventSpec(
        INFO, "an agent that is to stop was stopped by its own program's command first; says how"
    ),
    "stop.asked": EventSpec(INFO, "an agent is asked to end by itself, in the answer to its heartbeats over HTTP"),
    "kill.withdrawn": EventSpec(INFO, "a kill was called off before the first signal; says why"),
    "kill.signal_sent": EventSpec(INFO, "a signal went to a process whose identity was proved"),
    "kill.refused": EventSpec(
        WARNING,
        "the guard let a signal not out; says why",
        "the line names the process (`pid`); the guard errs on the safe side, end it by hand if it must go",
    ),
    "kill.finished": EventSpec(INFO, "the whole tree is proved dead; one line per kill"),
    "kill.unkillable": EventSpec(
        ERROR,
        "the kill did not end the whole tree; it is tried again with growing pauses",
        "`why AGENT` names the processes: D state (disk, NFS: repair it), frozen (thaw it), not ours (root),"
        " unreadable (see `process.unreadable`)",
    ),
    "cleanup.hook_finished": EventSpec(INFO, "a cleanup hook is done, had nothing to do, or kept something on purpose"),
    "cleanup.hook_failed": EventSpec(
        WARNING,
        "a cleanup hook failed or ran out of time in its last try, and is not done",
        "`why AGENT` has its output; correct the cause, then `agent-watchdog reap` runs it again",
    ),
    "reap.found": EventSpec(INFO, "something that a dead agent may have left is left as it is; says why, once"),
    "reap.begun": EventSpec(DEBUG, "the reaper is about to remove what a dead agent left; in the history alone"),
    "reap.finished": EventSpec(INFO, "what a dead agent left was put in order, or kept after all; says what and why"),
    "reap.failed": EventSpec(
        WARNING,
        "what a dead agent left could not be put in order; the next round tries again",
        "the line says why (a full or read-only disk, a process that cannot be ended); `reap --dry-run` lists it",
    ),
    "reap.trouble": EventSpec(
        WARNING,
        "the reaper could not look everywhere; said once for each place",
        "the line says where; nothing there is touched meanwhile",
    ),
    "cleanup.hook_skipped": EventSpec(INFO, "a cleanup hook was not run, since one that it needs did not end well"),
    "cleanup.hook_retried": EventSpec(
        WARNING,
        "a cleanup hook failed or ran out of time and is tried again after a pause; what it is to clean up is still"
        " there",
        "after a timeout: run the `timeout 5 ls` of the line; if that hangs, repair or unmount what the path lies on"
        " (FUSE, NFS), and the next try goes through; `why AGENT` says which try is running",
    ),
    "worktree.restored": EventSpec(INFO, "somebody had a worktree brought back from the trash; says where it is now"),
    "row.quarantined": EventSpec(
        ERROR,
        "a row of the registry, or what a `run` left for it, cannot be read and is left alone; the others are served",
        "the line says what is wrong with it; mend or delete the row when the daemon is stopped, the file at once",
    ),
    "hold.started": EventSpec(
        WARNING,
        "kills are held; says why",
        "mass stall: look at network and provider; pressure: what loads the host? by an operator: `unhold`",
    ),
    "hold.ended": EventSpec(INFO, "kills are no longer held"),
    "registry.unavailable": EventSpec(
        ERROR,
        "the registry cannot be read or written; nobody is ended meanwhile",
        "is the database there, its disk full or read-only? It goes on by itself",
    ),
    "registry.begun_anew": EventSpec(
        ERROR,
        "at start the registry was damaged, empty or gone: what was there was put aside, and another one begun; says"
        " why, and where it lies. Registered agents that live are watched as before; the daemon ends nobody until an"
        " operator says so, since what was held is not known any more",
        "hold again what was held, then `agent-watchdog unhold`, which is all where it was removed on purpose; the"
        " history is in the file that was put aside. One that is found again: stop the daemon, put it back, start it",
    ),
    "registry.recovered": EventSpec(INFO, "the registry works again"),
    "disk.reserve_used": EventSpec(
        ERROR,
        "a disk is full: what was kept for kill intents and for the log is used; of users who are no admins new"
        " registrations and holds are refused meanwhile",
        "make room; the reserve is made again by itself",
    ),
    "disk.reserve_restored": EventSpec(INFO, "there is room again, and the reserve is whole"),
    "registry.share_trimmed": EventSpec(
        WARNING,
        "a user's agents took more of the registry than `registry.megabytes_per_user`: its oldest history was"
        " forgotten; says how much is left, and how many events were not written",
        "what does that user's orchestrator write so often? Else a larger share",
    ),
    "registry.trimmed": EventSpec(INFO, "what ended longer than retention_days ago was forgotten; says how much"),
    "lock.lost": EventSpec(
        ERROR,
        "the lock or the pid file was removed or replaced, and cannot be made anew; tried again with each sweep",
        "the line says why; does another daemon run in the same runtime directory? Stop one of them",
    ),
    "lock.renewed": EventSpec(
        WARNING, "the lock or the pid file was removed or replaced; it was made anew and is held", ""
    ),
    "control.lost": EventSpec(
        ERROR,
        "the control socket was removed; a silence that we may have caused counts for nobody",
        "who removes files below the runtime directory? A reopened socket is told",
    ),
    "control.reopened": EventSpec(WARNING, "the control socket is there again"),
    "control.denied": EventSpec(
        WARNING,
        "a request on the control socket was refused for permission",
        "uid and pid say who asks for what is not his",
    ),
    "user.limited": EventSpec(
        WARNING,
        "a user wants more of something than its share; further wishes are refused or wait, others are served as ever",
        "`agent-watchdog status` counts them; what does that uid run? Subordinate uids count for their user",
    ),
    "user.unlimited": EventSpec(INFO, "no refusal to that user for a minute; says how many there were"),
    "users.unread": EventSpec(
        WARNING,
        "/etc/subuid cannot be read, or not all of it: subordinate uids there count for themselves",
        "the line says what is wrong; it is read again when it changes",
    ),
    "control.failed": EventSpec(
        ERROR,
        "a request on the control socket failed by a fault of ours",
        "a fault of ours: please report it with its `exception`",
    ),
    "metrics.listening": EventSpec(INFO, "figures are served over TCP, at [metrics] listen"),
    "metrics.failed": EventSpec(
        ERROR,
        "nothing is served at [metrics] listen; tried again with each sweep",
        "`error` says why: a port that is taken (`ss -ltnp`), no such address, a unit without the drop-in for TCP",
    ),
    "task.cancelled": EventSpec(INFO, "an operator cancelled a task; whoever worked on it was stopped"),
    "notify.failed": EventSpec(
        WARNING,
        "the command of [notify] failed or ran out of time; five reasons are told, once each, until it works again",
        "its output stands above (in the log: `why` of the line); run it by hand as the daemon's uid, with an event on"
        " stdin",
    ),
    "notify.dropped": EventSpec(
        WARNING,
        "more events than the command of [notify] is given; what is not passed on is counted, told once",
        "fewer events in `on`; the log has them all, `agent-watchdog events` those of agents",
    ),
    "notify.recovered": EventSpec(
        INFO, "the command of [notify] works again; says how many failed and were not passed on"
    ),
    "log.failed": EventSpec(
        ERROR,
        "the log's target cannot be written; lines go to stderr if it takes them, else are counted",
        "free the disk, or mend the path in `[log] file`; lines are on stderr meanwhile",
    ),
    "log.recovered": EventSpec(INFO, "the log's target is written again; says how many lines it lacks"),
    "log.limited": EventSpec(
        WARNING,
        "a user's requests and agents caused more lines in a minute than one user may; says how many were left out",
        "`events` has those of agents; what does that user's orchestrator do so often?",
    ),
    "log.lost": EventSpec(
        WARNING,
        "so many lines before this one were never written: the target took them too slowly",
        "a log this slow: what reads it? The history has what matters (`agent-watchdog events`)",
    ),
    "log.message": EventSpec(INFO, "something that a library logged, with its own level"),
}


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
