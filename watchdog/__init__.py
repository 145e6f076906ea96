"""agent-watchdogd: looks after AI coding agents, ends the stalled ones whole, and puts the place in order.

The map (one job each; the main loop is `service.Daemon.run`):

    core/        pure: what a sweep saw -> verdict -> decision; the steps of a kill. No I/O, clock, log or thread.
    errors       exceptions raised on purpose
    clock        the only reader of clocks
    config       strict TOML -> frozen settings
    logs         structlog and the catalogue of events
    registry/    SQLAlchemy: schema, every query, migrations
    processes/   /proc, pidfd, signals: identity, tree, the one guarded send, evidence
    intake/      the notify sockets (sd_notify datagrams)
    owner/       all that touches an owner's files, git or terminals; runs as that uid in a helper process
    owners       the daemon's side of those helpers
    control/     HTTP+JSON on a unix socket, and its client
    cli/         verbs: parse, call control, print
    fleet        the agents in memory: registration, beats, silence
    sweep        observe -> judge -> decide -> record
    kill_worker  claim -> next_step ... -> verified -> cleanup
    cleanup      runs hooks: journal, deadline, retry
    service      composition root and main loop

Imports run downwards (tests/test_layout.py holds it):
cli -> control.client; service -> sweep, kill_worker, cleanup, control.api -> fleet -> registry, processes, intake,
owners, config, logs, clock -> core, errors; owner -> core, errors.
"""
