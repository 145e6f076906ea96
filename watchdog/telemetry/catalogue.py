"""Every event that the daemon logs: level, meaning, what to do; names are stable. config/doc/events.md is the table.

Tests: tests/telemetry/test_logger.py, tests/test_documents.py.
"""

import logging
from dataclasses import dataclass

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


@dataclass(frozen=True, slots=True)
class EventSpec:
    """One event: its level, its meaning in one line, and what the person on call does about it ("": nothing)."""

    level: int
    text: str
    act: str = ""


CATALOGUE: dict[str, EventSpec] = {
    "daemon.starting": EventSpec(INFO, "the daemon has read its configuration and is starting"),
    "daemon.ready": EventSpec(INFO, "the sockets are open and the first sweep is scheduled"),
    "daemon.runtime_dir_taken": EventSpec(
        WARNING,
        "another user has a file at the usual place of the daemon's sockets in /tmp; the daemon uses another"
        " directory beside it",
        "clients find it by themselves; ask that user about the file",
    ),
    "config.reloaded": EventSpec(
        INFO,
        "the configuration was read again and is in force; lists the keys that changed, and those that wait for"
        " a restart",
    ),
    "config.invalid": EventSpec(
        ERROR,
        "the configuration was read again and cannot be used: the former one stays in force; lists each fault",
        "correct the file (`agent-watchdogd --check`), then reload",
    ),
    "daemon.stopping": EventSpec(INFO, "the daemon was asked to stop; agents keep running"),
    "daemon.stopped": EventSpec(INFO, "the daemon exits"),
    "stop.overdue": EventSpec(
        ERROR,
        "the daemon did not stop within 20 s and forces its exit; names what it was waiting for",
        "check what the line names: a disk, a server, a program that hangs; no step of a kill or cleanup is lost",
    ),
    "stop.unreleased": EventSpec(
        ERROR,
        "a lock could not be released during a forced exit",
        "the next start may report that a daemon is already running; the line has the error",
    ),
    "call.stuck": EventSpec(
        WARNING,
        "a call that the daemon depends on has not returned for 5 s; the daemon continues without it and tries"
        " again later",
        "check what the line names (NSS, a directory, the registry's disk); `status` shows it until it has returned",
    ),
    "call.returned": EventSpec(INFO, "the call that `call.stuck` named has returned"),
    "daemon.failed": EventSpec(
        ERROR,
        "the daemon exits because of an internal error",
        "the line says what is wrong; systemd restarts the daemon unless the configuration is at fault (`--check`)",
    ),
    "sweep.summary": EventSpec(INFO, "figures of the sweeps of the last ten minutes"),
    "sweep.finished": EventSpec(DEBUG, "figures of one sweep"),
    "sweep.overrun": EventSpec(
        WARNING,
        "a sweep took longer than the interval; the next one is late",
        "is the host overloaded? Else a longer `sweep.interval_seconds`",
    ),
    "sweep.scan_failed": EventSpec(
        ERROR,
        "/proc could not be read; this sweep knows no process tree and no activity",
        "is /proc mounted, and without `hidepid`? Until then no agent is seen as busy",
    ),
    "process.unreadable": EventSpec(
        WARNING,
        "a read of that process's file below /proc hangs: what the process does is unknown; an agent whose main"
        " process it is counts neither as dead nor as stale, and can still be killed",
        "its user (`uid`) can cause that: kill the process, or repair the file system (FUSE, NFS) that it waits for",
    ),
    "process.readable": EventSpec(INFO, "that process can be read again, or has exited"),
    "sweep.failed": EventSpec(
        ERROR,
        "a sweep raised an error; no agent was judged by it",
        "an internal error: please report it with its `exception`; no agent is killed meanwhile",
    ),
    "sweep.recovered": EventSpec(INFO, "sweeps work again; gives the number that failed"),
    "scheduler.dead": EventSpec(
        ERROR,
        "no sweep finished for three intervals (at least 30 s) and waking the scheduler did not help, or the"
        " event loop stood still for as long; the daemon exits with status 70",
        "systemd restarts it; if it happens again, report it",
    ),
    "job.failed": EventSpec(
        ERROR,
        "one of the daemon's background jobs raised an error; it runs again, and this is logged once until a run works",
        "an internal error: please report it with its `exception`",
    ),
    "job.recovered": EventSpec(INFO, "a job that had failed works again"),
    "clock.stepped": EventSpec(
        WARNING,
        "the wall clock was set; this does not change how long any agent counts as silent",
        "nothing; if it happens often, check NTP",
    ),
    "clock.gap": EventSpec(
        WARNING,
        "the daemon was not watching for a while (suspend, overload); every agent gets one fresh silence limit",
        "nothing after a suspend; otherwise the host is overloaded",
    ),
    "agent.registered": EventSpec(INFO, "an agent is watched from now on"),
    "agent.starting": EventSpec(INFO, "a queued agent is being started"),
    "agent.row_lost": EventSpec(
        WARNING,
        "the row of a living agent was removed from the registry; nothing is done to the agent",
        "its next heartbeat writes the row again; an agent that never sends heartbeats must be registered again",
    ),
    "agent.not_copied": EventSpec(
        WARNING,
        "an agent's registration could not be copied to the backup that is used when an older registry is restored",
        "see `error`; nothing else depends on it",
    ),
    "agent.row_restored": EventSpec(INFO, "the agent sent a heartbeat, and its row was written again"),
    "agent.pid_known": EventSpec(INFO, "the agent's main process is known"),
    "agent.owner_changed": EventSpec(
        INFO, "the main process dropped from root to a user, who now owns the agent permanently"
    ),
    "agent.untouchable": EventSpec(
        INFO,
        "the main process runs with other uids than its owner's (sudo, su); its files and terminal are left"
        " alone meanwhile",
    ),
    "agent.first_beat": EventSpec(INFO, "the first heartbeat arrived; from now on silence counts"),
    "agent.late": EventSpec(
        WARNING,
        "silent for longer than it may be; not yet confirmed by a second look, or signs of work delay the verdict",
        "nothing yet; `agent-watchdog why AGENT`",
    ),
    "agent.recovered": EventSpec(
        INFO, "an agent that was late or stalled sends heartbeats again, or an unknown one can be judged again"
    ),
    "agent.stalled": EventSpec(
        WARNING,
        "silent for longer than it may be, confirmed by a second look, with no sign of work",
        "nothing: it is killed next. Often the same kind of agent? Set `--stall-after` or a `[[policy]]`",
    ),
    "agent.expired": EventSpec(
        WARNING, "the agent's time to live is over", "nothing; use a larger `--ttl` if it should live longer"
    ),
    "agent.gone": EventSpec(INFO, "the main process is proved to be gone"),
    "agent.unknown": EventSpec(
        WARNING,
        "the agent could not be examined; nothing is concluded from that",
        "`why AGENT` names the check that fails (rights, `hidepid`, a heartbeat file); the agent is not killed for it",
    ),
    "agent.waiting": EventSpec(INFO, "the agent is waiting, on a lease or for a person"),
    "agent.needs_human": EventSpec(
        WARNING,
        "the agent has waited for a person for longer than the prompt limit; it says so, or its tmux pane shows"
        " a prompt",
        "answer its prompt, or kill it; an agent that says it waits is allowed to wait without limit",
    ),
    "agent.human_answered": EventSpec(INFO, "an agent that needed a person no longer waits for one"),
    "agent.expires_soon": EventSpec(
        WARNING,
        "a tenth of the agent's time to live is left, or five minutes; then it is killed",
        "let it finish its work; a longer `--ttl` applies only to a new agent",
    ),
    "agent.wait_capped": EventSpec(
        WARNING,
        "an agent asked to be silent for longer than wait_limit; this was cut to the limit, and is logged once",
        "right if it would wait forever; otherwise set a larger `wait_limit_seconds` in its `[[policy]]`",
    ),
    "agent.lingering": EventSpec(
        WARNING,
        "the agent said `done` and is still running",
        "nothing: it is killed next; with `linger_seconds = 0` kill it yourself",
    ),
    "agent.told": EventSpec(
        WARNING,
        "the agent would be killed; this is the `warn` step of its ladder, or its ladder has no `kill`",
        "decide: `agent-watchdog kill AGENT`, or give its `[[policy]]` a ladder with `kill`",
    ),
    "agent.beat_file_unread": EventSpec(
        WARNING,
        "a heartbeat file cannot be read or written; its agent is unknown until wait_limit",
        "can its owner read the file, and is its disk mounted?",
    ),
    "source.ghost": EventSpec(
        INFO, "an entry of another program's registry was closed: its process is gone, or its pid was reused"
    ),
    "source.entry_kept": EventSpec(
        WARNING,
        "an entry of another program's registry whose process is gone could not be closed",
        "the line gives the reason; the daemon tries again",
    ),
    "source.entry_gone": EventSpec(
        WARNING,
        "an agent is alive, but the registry that listed it no longer does",
        "nothing is done: it is still watched, but its silence no longer counts",
    ),
    "source.drift": EventSpec(
        WARNING,
        "another program's registry disagrees with what is running",
        "nothing is done about it: the line explains the difference, and `list` shows it while it lasts",
    ),
    "source.unread": EventSpec(
        WARNING,
        "a [[source]] cannot be read or written completely: agents listed only there are missing, and agents"
        " whose heartbeats it holds are unknown until wait_limit",
        "the line says why: is its disk full or read-only, a file damaged, locked, or not accessible to the"
        " daemon's uid? Logged again if it was readable in between",
    ),
    "source.readable": EventSpec(INFO, "a [[source]] that could not be read can be read completely again"),
    "helper.unconfined": EventSpec(
        WARNING,
        "this host lacks a mechanism that confines the owners' helpers; they run without it; logged once for"
        " each mechanism",
        "`agent-watchdog doctor` names it and what it needs",
    ),
    "descriptors.exhausted": EventSpec(
        ERROR,
        "connections wait because no file descriptor is free; logged once, and no agent's silence counts meanwhile",
        "raise the unit's `LimitNOFILE`; what holds so many? `ls -l /proc/PID/fd`",
    ),
    "descriptors.back": EventSpec(INFO, "connections are accepted again"),
    "agent.unpinned": EventSpec(
        WARNING, "no pidfd for an agent's process: its exit is noticed only by a sweep", "see `descriptors.exhausted`"
    ),
    "cgroup.refused": EventSpec(
        WARNING,
        "agents of `run` get no cgroup of their own (refused by systemd or the kernel); logged once, until one gets it",
        "the line says why: is the bus there? Meanwhile trees are recognised by marker, session and descent",
    ),
    "cgroup.works": EventSpec(INFO, "agents of `run` get their own cgroup again"),
    "session.found": EventSpec(
        INFO,
        "a session that a shared service works for was reported; says which agent owns it, or that this is unknown",
    ),
    "agent.channel_lost": EventSpec(
        WARNING,
        "its heartbeats cannot reach the daemon (its socket, the directory or the path to the daemon is gone, or"
        " too many connections); its silence does not count for that time; logged once",
        "after a restart nothing; otherwise: does its runtime directory exist, and what holds so many"
        " connections of that uid?",
    ),
    "agent.elsewhere": EventSpec(
        WARNING,
        "another daemon of this host watches this agent (`why` names it): this daemon judges and cleans up"
        " nothing, and forwards what the agent reports",
        "two daemons know one agent: is the second daemon wanted?",
    ),
    "agent.taken_over": EventSpec(
        WARNING,
        "the daemon that watched this agent is gone, or no longer watches it; this one does now, and the agent's"
        " silence starts from zero",
        "was that daemon meant to stop?",
    ),
    "agent.sockets_made_again": EventSpec(
        WARNING,
        "notify sockets of registered agents were missing from their directory and were created again; these"
        " agents get one fresh silence limit",
        "what removes files from the runtime directory of a running daemon?",
    ),
    "agent.socket_blocked": EventSpec(
        ERROR,
        "the socket to which an agent sends its heartbeats is gone, and what lies in its place cannot be moved away;"
        " its silence is not held against it meanwhile, so a stall of it is found late",
        "move away what the line names, as the daemon's uid (`mv`; `umount` where something is mounted there); the"
        " socket is then made again by itself",
    ),
    "agent.socket_found": EventSpec(INFO, "the socket of an agent that could not be made lies at its place again"),
    "agent.spared": EventSpec(INFO, "a kill of the agent was called off after it was claimed; the agent got no signal"),
    "agent.ending": EventSpec(INFO, "the agent is being killed, or cleaned up after its exit"),
    "agent.unkillable": EventSpec(
        ERROR, "processes of the agent cannot be killed; names them and the reason", "as for `kill.unkillable`"
    ),
    "agent.crashed": EventSpec(
        WARNING,
        "the agent exited on its own abnormally: by a signal, with a non-zero status, or with unknown status",
        "`agent-watchdog why AGENT` shows its last output, and how to resume its conversation",
    ),
    "agent.purged": EventSpec(INFO, "an operator moved the conversation of an ended agent to the trash; says where"),
    "agent.ended": EventSpec(INFO, "the agent has ended and is cleaned up; its row is closed"),
    "beat.rejected": EventSpec(
        WARNING,
        "a heartbeat was rejected (wrong uid or process, malformed, a hook of an unknown program); logged once",
        "the sender has another uid, or its client is wrong; the line says which",
    ),
    "kill.requested": EventSpec(WARNING, "a kill was requested; says who requested it, and why"),
    "kill.observed": EventSpec(
        WARNING, "observe mode: what would be killed now, and why", 'nothing; `mode = "enforce"` would kill it'
    ),
    "kill.held": EventSpec(
        WARNING,
        "a kill for a verdict is held back; says why",
        "see `hold.started`; budget: many agents are stalled at once, find out why",
    ),
    "kill.resumed": EventSpec(INFO, "resumed a kill request left by an earlier daemon or another host"),
    "kill.waiting": EventSpec(
        WARNING, "a kill request waits because the registry cannot be written", "as for `registry.unavailable`"
    ),
    "kill.failed": EventSpec(
        ERROR,
        "an attempt at a kill raised an error; it is tried again from its last committed step",
        "an internal error: please report it; the daemon tries again by itself",
    ),
    "agent.nudged": EventSpec(
        WARNING,
        "the ladder nudged an agent: a line typed into its tmux pane, or its command; gives the result",
        "see what it does (`agent-watchdog why AGENT`); the ladder's next step follows unless a heartbeat comes",
    ),
    "agent.obeyed": EventSpec(INFO, "an agent sends heartbeats again after a step of its ladder, which ends there"),
    "stop.keys": EventSpec(
        INFO, "the exit keys of an agent that is to stop were typed into its tmux pane; if not, says why"
    ),
    "stop.program": EventSpec(
        INFO, "an agent that is to stop was first stopped by its own program's command; gives the result"
    ),
    "stop.asked": EventSpec(INFO, "an agent is asked to exit, in the answer to its heartbeats over HTTP"),
    "kill.withdrawn": EventSpec(INFO, "a kill was called off before the first signal; says why"),
    "kill.signal_sent": EventSpec(INFO, "a signal was sent to a process whose identity was verified"),
    "kill.refused": EventSpec(
        WARNING,
        "a safety check blocked a signal; the line gives the reason",
        "the line names the process (`pid`); the check errs on the safe side, kill it by hand if it must go",
    ),
    "kill.finished": EventSpec(
        INFO,
        "the whole tree is proved dead; one line per kill: its cause (`stalled`, `expired`, `lingering`, `not started`,"
        " or `killed on request`, `stopped on request` where a person or program ordered it), and what ended by what",
    ),
    "kill.unkillable": EventSpec(
        ERROR,
        "the kill did not end the whole tree; it is tried again with growing pauses",
        "`why AGENT` names the processes: D state (disk, NFS: repair it), frozen (thaw it), another user's"
        " (root), unreadable (see `process.unreadable`)",
    ),
    "cleanup.hook_finished": EventSpec(
        INFO, "a cleanup hook has finished, had nothing to do, or kept something on purpose"
    ),
    "cleanup.hook_failed": EventSpec(
        WARNING,
        "a cleanup hook failed or timed out on its last try, and is not done",
        "`why AGENT` has its output; correct the cause, then `agent-watchdog reap` runs it again",
    ),
    "reap.found": EventSpec(INFO, "something that may belong to a dead agent is left alone; says why, once"),
    "reap.begun": EventSpec(
        DEBUG, "the reaper is about to remove something a dead agent left; recorded in the history only"
    ),
    "reap.finished": EventSpec(
        INFO, "something a dead agent left was cleaned up, or kept after all; says what and why"
    ),
    "reap.failed": EventSpec(
        WARNING,
        "something a dead agent left could not be cleaned up; the next round tries again",
        "the line says why (a full or read-only disk, a process that cannot be killed); `reap --dry-run` lists it",
    ),
    "reap.trouble": EventSpec(
        WARNING,
        "the reaper could not look everywhere; logged once for each place",
        "the line says where; nothing there is touched meanwhile",
    ),
    "cleanup.hook_skipped": EventSpec(INFO, "a cleanup hook was not run because one that it needs did not succeed"),
    "cleanup.hook_retried": EventSpec(
        WARNING,
        "a cleanup hook failed or timed out and is tried again after a pause; what it should clean up is still there",
        "after a timeout: run the `timeout 5 ls` of the line; if that hangs, repair or unmount the file system"
        " of the path (FUSE, NFS), and the next try succeeds; `why AGENT` shows which try is running",
    ),
    "worktree.restored": EventSpec(INFO, "a worktree was restored from the trash; says where it is now"),
    "row.quarantined": EventSpec(
        ERROR,
        "a row of the registry, or a report that a `run` left, cannot be read and is left alone; all others are served",
        "the line says what is wrong; repair or delete a row while the daemon is stopped, a report at any time",
    ),
    "hold.started": EventSpec(
        WARNING,
        "kills are held; says why",
        "mass stall: check network and provider; pressure: what loads the host? by an operator: `unhold`",
    ),
    "hold.ended": EventSpec(INFO, "kills are no longer held"),
    "registry.unavailable": EventSpec(
        ERROR,
        "the registry cannot be read or written; no agent is killed meanwhile",
        "is the database there, its disk full or read-only? The daemon continues by itself when it is back",
    ),
    "registry.begun_anew": EventSpec(
        ERROR,
        "the registry was damaged, empty or gone at start: what was there was moved aside and a new one created; says"
        " why, and where the old one is. Registered agents that are alive are watched as before; the daemon kills none"
        " until an operator allows it, because the former holds are no longer known",
        "hold again what was held, then `agent-watchdog unhold`, which is all where it was removed on purpose; the"
        " history is in the file that was moved aside. One that is found again: stop the daemon, put it back, start it",
    ),
    "registry.recovered": EventSpec(INFO, "the registry works again"),
    "disk.reserve_used": EventSpec(
        ERROR,
        "a disk is full: the space reserved for kill intents and the log is in use; new registrations and holds"
        " of users who are not admins are refused meanwhile",
        "free some space; the reserve is restored by itself",
    ),
    "disk.reserve_restored": EventSpec(INFO, "there is space again, and the reserve is complete"),
    "registry.share_trimmed": EventSpec(
        WARNING,
        "a user's agents took more of the registry than `registry.megabytes_per_user`: its oldest history was"
        " deleted; says how much is left, and how many events were not written",
        "what does that user's orchestrator write so often? Otherwise set a larger share",
    ),
    "registry.trimmed": EventSpec(
        INFO, "history of agents that ended more than retention_days ago was deleted; says how much"
    ),
    "lock.lost": EventSpec(
        ERROR,
        "the lock or the pid file was removed or replaced, and cannot be created again; tried again with each sweep",
        "the line says why; does another daemon run in the same runtime directory? Stop one of them",
    ),
    "lock.renewed": EventSpec(
        WARNING, "the lock or the pid file was removed or replaced; it was created again and is held"
    ),
    "control.lost": EventSpec(
        ERROR,
        "the control socket was removed; silence that may be due to this does not count",
        "what removes files below the runtime directory? `control.reopened` reports the new socket",
    ),
    "control.reopened": EventSpec(WARNING, "the control socket is there again"),
    "control.denied": EventSpec(
        WARNING,
        "a request on the control socket was refused for lack of permission",
        "uid and pid say who asked for something that is not theirs",
    ),
    "user.limited": EventSpec(
        WARNING,
        "a user exceeds its share of something; further requests are refused or wait, other users are served as usual",
        "`agent-watchdog status` counts them; what does that uid run? Subordinate uids count for their user",
    ),
    "user.unlimited": EventSpec(INFO, "no request of that user was refused for a minute; gives the number of refusals"),
    "users.unread": EventSpec(
        WARNING,
        "/etc/subuid cannot be read completely: subordinate uids listed there count as users of their own",
        "the line says what is wrong; it is read again when it changes",
    ),
    "control.failed": EventSpec(
        ERROR,
        "a request on the control socket failed because of an internal error",
        "an internal error: please report it with its `exception`",
    ),
    "metrics.listening": EventSpec(INFO, "metrics are served over TCP, at [metrics] listen"),
    "metrics.failed": EventSpec(
        ERROR,
        "metrics cannot be served at [metrics] listen; tried again with each sweep",
        "`error` says why: a port in use (`ss -ltnp`), no such address, a unit without the drop-in for TCP",
    ),
    "task.cancelled": EventSpec(INFO, "an operator cancelled a task; the agents that worked on it were stopped"),
    "notify.failed": EventSpec(
        WARNING,
        "the command of [notify] failed or timed out; up to five different reasons are logged, once each, until"
        " it works again",
        "its output stands above (in the log: `why` of the line); `agent-watchdog doctor` has the line that runs it by"
        " hand",
    ),
    "notify.dropped": EventSpec(
        WARNING,
        "there are more events than the command of [notify] may get; the rest is counted, and this is logged once",
        "list fewer events in `on`; the log has them all, `agent-watchdog events` those of agents",
    ),
    "notify.recovered": EventSpec(
        INFO, "the command of [notify] works again; says how many calls failed and how many events were not passed on"
    ),
    "log.failed": EventSpec(
        ERROR,
        "the log's target cannot be written; lines go to stderr if it accepts them, otherwise they are counted",
        "free the disk, or correct the path in `[log] file`; lines are on stderr meanwhile",
    ),
    "log.recovered": EventSpec(INFO, "the log's target can be written again; says how many lines are missing from it"),
    "log.limited": EventSpec(
        WARNING,
        "a user's requests and agents caused more lines in a minute than one user may; says how many were omitted",
        "`events` has those of agents; what does that user's orchestrator do so often?",
    ),
    "log.lost": EventSpec(
        WARNING,
        "the given number of lines before this one were never written: the target was too slow",
        "what reads a log this slowly? The history has what matters (`agent-watchdog events`)",
    ),
    "log.message": EventSpec(INFO, "a message logged by a library, with its own level"),
}


UNTOLD: dict[str, str] = {
    "daemon.starting": "daemon.ready",
    "daemon.stopped": "daemon.stopping",
    "daemon.failed": "OnFailure= in the unit, as the daemon has ended by then",
    "agent.starting": "agent.registered",
    "agent.ending": "kill.requested",  # these four are in the history only
    "agent.spared": "kill.withdrawn",
    "agent.unkillable": "kill.unkillable",
    "log.message": "an event of ours, as these are messages of libraries",
    "notify.failed": "none: the command would get reports about itself",
    "notify.dropped": "none: the command would get reports about itself",
    "notify.recovered": "none: the command would get reports about itself",
}
