"""agent-watchdogd: watches AI coding agents, kills the stalled ones with their whole tree, and cleans up after them.

The main loop is service/main_loop.py. Packages, top to bottom; each line imports only from lines below it, packages on
one line do not import each other, and a test holds it (tests/test_layout.py):

    service                the daemon process: command line, wiring, MAIN LOOP, recovery, reload, shutdown order
    control                the HTTP API on the control socket: listener, peers, schemas, resolve, routes/, views/
    sweep | reaper | discovery  every 10 s: judge, decide | what dead agents left | agents that other programs report
    kill                   one kill order, to its proven end
    cleanup | probes       runs the cleanup hooks, journaled | what is observed of an agent from outside
    agents                 the agents in memory: registration, holds, persistence, history
    intake | helpers       the notify sockets (sd_notify) | the daemon's side of the owners' helper processes
    host                   this machine: service manager, instance lock, child processes, reserved disk space
    registry | processes   the database, SQLAlchemy only here | /proc, pidfd, cgroups and the ONE guarded send
    config                 strict TOML -> frozen settings; paths
    telemetry              event catalogue, logger, log queue and targets, Prometheus metrics
    concurrency | client | file_identity  calls that may never return | asks a control socket | which file it really is
    core                   PURE: verdict (judge), decision (decide), ladder, kill steps, values on the wire
    clock, errors          the only reader of clocks; exceptions raised on purpose

Apart from these: owner/ is a program of its own that runs as an agent's owner, cli/ is the client and the wrapper
`run`, front/ is what the console scripts import first. They share core and errors
(owner also file_identity and client.custody, cli also client), never code that acts.
"""
