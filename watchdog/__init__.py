"""agent-watchdogd: looks after AI coding agents, ends the stalled ones whole, and puts the place in order.

The map, from the main loop down (`service.Daemon.run`); one job each:

    front/       `agent_watchdogd`: what the commands import first, whatever an agent has on its PYTHONPATH
    entry        the signals that the starter left, before all below is imported
    start        the command `agent-watchdogd`: options, configuration, logs
    checkup      `--check`: is what the file leads to there, and safe
    exposure     which secrets and words of agents others may read
    background   away from the terminal, with a pid file, where there is no systemd
    service      composition root, main loop, shutdown order
    cli/         the verbs: parse, call control, print; cli/resident/ is what stays beside an agent
    door         the control socket and the agents' notify sockets, kept open
    custody      whose an agent is that another daemon of this host knows, too
    descriptors  how many we need, and what is said when they run out
    control/     HTTP+JSON on a unix socket, and its client
    sweep        observe -> judge -> decide -> record, for every agent
    climbing     the steps of a ladder that end nobody: warn, nudge
    takeup       what the registry holds for this host: at start all, later orders of others
    sources      agents that other programs' own registries tell of
    source_places  whose each is, and what is kept of it between looks
    entries      one entry there, measured by the kernel: whose process, and whether it is that one
    ghosts       entries whose process is gone: closed there
    retention    forgets what ended long ago, a few rows at a time
    shares       what each user's agents may take of the registry; beyond it their oldest history goes early
    reaper       what dead agents left behind: looked for each ten minutes, put in order, shown by `reap`
    orphans      processes that outlived their agent
    latecomers   agents whose whole life no daemon saw, as their `run` wrote it down
    leftovers    what else they left, asked of the owners' helpers
    kill_worker  claim -> end the tree, proved -> cleanup -> rows
    claiming     who takes an agent's row for an order, and until when a beat withdraws it
    resuming     which conversation an agent is in, captured before its end
    asking       has an agent end by itself, before any signal
    orders       a kill request in memory, and how its outcome is told
    order_rows   the same as JSON in its row
    testimony    what each source said of an agent right before its first signal
    telling      what an order says of its attempts: each thing once
    ending       one tree: look, next step, commit, act, look again
    enclosure    its own cgroup meanwhile: who is in it, freeze, kill as a whole, thaw
    roll         who belongs to it, each held by a pidfd, and what was sent to whom
    closing      the last part of an order: hooks, task row, our row
    reports      how an agent ended, as its `run` wrote it down for a daemon that was away
    journal      cleanup hooks with the registry as their journal
    cleanup      which hooks run, in which order, how often
    hearing      what reaches us between sweeps: beats, exits
    reserve      disk space that is kept for kill intents and the log
    copies       what was registered, once more beside the registry: an older one that is put back loses nobody
    ownership    whose an agent's process is now: looked at before anything is done as its owner
    ends         the ends of main processes, by their pidfds
    beat_files   files whose mtime is a beat, by the owners' helpers
    growth       what changes while a silent agent works: transcript, log, tmux pane, bytes moved; likewise
    prompts      dialogs that only a pane shows, and whether one that has not spoken was prompted
    session_files  states that no hook ends, as a vendor's own session file tells
    activity     what a silent agent was seen doing by the kernel, and its child agents
    scan         one /proc scan for all who want one
    chronicle    what happened, told twice: log and history
    fleet        the agents in memory: verdict, tree, pidfd
    speaker      what one of them said, how long it was watched silent, what was seen meanwhile
    targets      from what a person calls agents to the agents
    sharing      which places of one agent another living agent has too
    occupancy    whether another uid's process uses an agent's place: root's daemon asks
    sites        what lies at the places of agents, seen while they live: a stranger's there is left alone
    recording    what was watched into the registry; whether that works
    claimant     who holds a claim, and whether that daemon is gone
    holds        operators' holds in memory
    steps        steps of the wall clock, so that nothing falls due by one
    schedule     APScheduler, made proof against clocks that jump
    restraint    what holds the daemon's own kills back: operators, the registry, a budget, doubt in ourselves
    pressure     whether the host is so pressed that a silence says little
    tidings      what a sweep found out about an agent, told once
    account      what sweeps found and cost: figures, and the summary line
    metrics      figures for Prometheus
    admission    what each user may take of what all share: agents, connections, requests; who was refused
    users        which user a uid counts for: /etc/subuid
    lanes        whose work a task does; queues in which no user's work stands behind another's
    bulletin     what the daemon says of itself: status line, facts, figures
    troubles     the daemon's own recent errors, until each is over
    summons      what signals ask of it: stop, read the configuration anew
    shutdown     the end within its limit, whatever hangs: the last resort beside the orderly end
    reloading    SIGHUP: the configuration read anew
    registry/    SQLAlchemy: schema, every query, migrations
    processes/   /proc, pidfd, signals: identity, tree, the one guarded send, evidence
    intake/      the notify sockets (sd_notify datagrams)
    notices      `[notify]`: events start the operator's command
    placement    an agent's own cgroup: a scope of systemd's, or a leaf of ours
    limits       what root has laid on the units and cgroups that an agent would leave
    shortage     whether the kernel ended an agent for want of memory
    owners       the daemon's side of the owners' helpers
    vacancies    how many of them there may be at once
    nss          questions to it, which may take minutes: no thread of the loop's
    panes        the panes of terminals that agents sit in: found once, their last screen
    inquiries    questions to them beside the sweep, one at a time for each thing
    units        a helper as a transient unit of systemd
    children     child processes of the loop, whose start may hang; and those that nobody of ours started
    owner/       all that touches an owner's files, git or terminals; runs as that uid in a helper process
    config       strict TOML -> frozen settings
    salvage      what can be read of a file that is no TOML: its other faults
    keys         what each section of it may hold
    complaints   a fault in it, in words
    values       what a value may be, and what would be right
    logs         structlog over stdlib logging
    line_limits  how many lines a minute one user may cause
    sink         the queue between whoever logs and the log's target
    log_targets  stderr, a file, the journal
    catalogue    every event that is logged, with level and meaning
    untold       events that no command can be told of
    places       where things lie, and whether a directory is really ours
    lock         one daemon per runtime and per state directory
    systemd      our own word to the service manager
    threads      calls that may never return: daemon threads that are given up, counted and joined by nobody
    clock        the only reader of clocks
    core/        pure: what a sweep saw -> verdict -> decision; the steps of a kill. No I/O, clock, log or thread.
    errors       exceptions raised on purpose

Imports run downwards, by the ranks in tests/test_layout.py, which also holds this map to be whole:
cli -> control.client; service -> sweep, kill_worker, cleanup, control.api -> fleet -> registry, processes, intake,
owners, config, logs, clock -> core, errors; owner -> core, errors.
"""
