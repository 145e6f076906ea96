"""The text of `why`: from the daemon's JSON about one agent to lines for a person. Prints nothing itself."""

from collections.abc import Iterator

from watchdog.cli.output import Json, ago, clean, clock, entries, entry, ran

_EVIDENCE_LINES = 12
_PROCESSES = 20
_LINE = 110
_LINES_OF_TABLE = 9  # of verdicts: the first that fits wins (README, The verdict)
# What the line itself, the heading or the part on the kill request says already; `--json` has it all.
_TOLD_ELSEWHERE = frozenset(
    {
        *("agent_id", "name", "host", "boot_id", "start_ticks", "pidfd_inode", "request_id", "task_id", "reason"),
        *("success", "action", "message", "status", "killed_at", "killed_gracefully", "kill_signal", "omitted"),
        *("grace_period_seconds", "seconds_since_heartbeat", "exit_code", "exit_signal", "processes", "cleanup"),
    }
)


def story(answer: Json) -> Iterator[str]:
    """All lines: who it is, what was seen last, what happened in order of time, and what would have to change."""
    agent = entry(answer.get("agent"))
    yield from _heading(agent)
    yield ""
    yield "signals now" if agent.get("completed_at") is None else "signals when it ended"
    yield from _signals(agent)
    members = entries(agent.get("members"))
    if members:
        yield ""
        age = agent.get("members_age_seconds")
        yield "its processes at the last scan" + ("" if age is None else f", {ago(age)} ago")
        for member in members:
            yield (
                f"  {clean(member.get('pid')):>8} {clean(member.get('name')):<16} state {clean(member.get('state'))}, "
                f"known by {clean(member.get('via'))}, {clean(member.get('cpu_seconds'))} s of CPU"
            )
    yield ""
    yield "what happened"
    yield from _timeline(answer)
    for request in entries(answer.get("requests")):
        yield ""
        yield from _request(request)
    yield ""
    yield "what would have to change"
    outlook = agent.get("outlook")
    for sentence in outlook if isinstance(outlook, list) else []:
        yield f"  {clean(sentence)}"


def _heading(agent: Json) -> Iterator[str]:
    yield (
        f"{clean(agent.get('name'))}  {clean(agent.get('status'))}"
        f"{', ' + clean(agent.get('verdict')) if agent.get('verdict') and not agent.get('completed_at') else ''}"
    )
    if agent.get("why"):
        row = f"line {agent['line']} of {_LINES_OF_TABLE}: " if agent.get("line") else ""
        yield f"  {row}{clean(agent.get('why'))}"
    if agent.get("held"):
        yield f"  HELD: {clean(agent.get('held'))}"
    pairs = [
        ("agent id", agent.get("agent_id")),
        ("owner", f"uid {agent.get('owner_uid')}"),
        ("pid", agent.get("pid") or "none was told"),
        ("program", agent.get("command")),
        ("type", agent.get("type")),
        ("tags", ", ".join(str(tag) for tag in _list(agent.get("tags")))),
        ("task", agent.get("task_id")),
        ("parent", agent.get("parent_id")),
        ("registered", f"{clock(agent.get('created_at'))} by {agent.get('source')}"),
        ("ended", clock(agent.get("completed_at"))),
        ("exit", _exit(agent)),
        ("worktree", agent.get("worktree")),
        ("temp dir", agent.get("temp_dir")),
        ("log", agent.get("log")),
        ("transcript", agent.get("transcript")),
        ("cgroup", agent.get("cgroup")),
        ("pane", agent.get("pane")),
    ]
    for key, value in pairs:
        if value not in (None, ""):
            yield f"  {key:<11} {clean(value)}"


def _exit(agent: Json) -> str:
    if agent.get("exit_signal") is not None:
        return f"by signal {agent['exit_signal']}"
    return "" if agent.get("exit_code") is None else f"status {agent['exit_code']}"


def _signals(agent: Json) -> Iterator[str]:
    """Of a living agent each signal, with its age and whose word it is; of one that has ended what its row kept."""
    for signal in entries(agent.get("signals")):
        name, age = f"  {clean(signal.get('signal')):<11}", signal.get("age_seconds")
        if signal.get("says") is None:
            yield f"{name} no evidence: {clean(signal.get('missing'))}"
        else:
            says, more = clean(signal.get("says")), clean(signal.get("more"))
            since = "" if age is None else f"{'' if says.endswith('the last') else ','} {ago(age)} ago"
            yield f"{name} {says}{since}{'; ' if more else ''}{more} [{clean(signal.get('trust'))}]"
    if agent.get("completed_at") is not None:
        beats, last = clean(agent.get("beats")), clock(agent.get("last_heartbeat"))
        silent = ago(agent.get("silence_seconds"))
        said = f"{beats} so far, the last at {last}" if last else "none came"
        yield f"  heartbeat   {said}; silent for {silent} of watched time"
        if agent.get("state"):
            yield f"  state       says {clean(agent.get('state'))}"
        if agent.get("progress") is not None:
            yield f"  progress    {clean(agent.get('progress'))}"
    if agent.get("ttl_left_seconds") is not None:
        yield f"  time        {_time_left(agent.get('ttl_left_seconds'))}"
    if agent.get("note"):
        yield f"  note        {clean(agent.get('note'))}"


def _time_left(seconds: object) -> str:
    if isinstance(seconds, int | float) and seconds < 0:
        return f"its time to live is over since {ago(-seconds)}"
    return f"{ago(seconds)} of its time to live left"


def _timeline(answer: Json) -> Iterator[str]:
    """Events in the order in which they were written down, which is that of happening whatever the clocks did.

    A hook's end is told once, by its run: in the place of its last event, else by its time.
    """
    runs = {clean(run.get("hook")): run for run in entries(answer.get("cleanup"))}
    moments: list[tuple[str, list[str]]] = []
    for event in reversed(entries(answer.get("events"))):
        hook = clean(entry(event.get("evidence")).get("hook")) if event.get("event") == "cleanup.hook_finished" else ""
        run = runs.pop(hook, None)
        if run is not None:
            moments.append((str(run.get("finished_at") or event.get("at")), _run(run)))
        elif not any(hook == clean(one.get("hook")) for one in entries(answer.get("cleanup"))):
            moments.append((str(event.get("at")), _event(event)))
    moments.reverse()
    for run in runs.values():
        at = str(run.get("finished_at") or run.get("started_at"))
        place = next((number for number, (other, _) in enumerate(moments) if other > at), len(moments))
        moments.insert(place, (at, _run(run)))
    if not moments:
        yield "  (its history is older than the registry keeps)"
    for at, lines in moments:
        yield f"  {clock(at)}  {lines[0]}"
        for line in lines[1:]:
            yield f"  {'':19}  {line}"


def _event(event: Json) -> list[str]:
    change = ""
    if event.get("to_status"):
        before = event.get("from_status")
        change = (
            f" ({clean(before)} → {clean(event.get('to_status'))})" if before else f" ({clean(event.get('to_status'))})"
        )
    first = f"{clean(event.get('event'))}{change}: {clean(event.get('why'))} [by {clean(event.get('who'))}]"
    return [first, *_facts(event.get("evidence"))]


def _run(run: Json) -> list[str]:
    return [ran(run), *_facts(run.get("details"))]


def _request(request: Json) -> Iterator[str]:
    yield f"kill request {clean(request.get('request_id'))[:8]}: {clean(request.get('status'))}"
    asked = clock(request.get("created_at"))
    yield f"  asked for by {clean(request.get('by'))}, reason {clean(request.get('reason'))}, {asked}"
    options = ", ".join(
        f"{clean(k)} {clean(v)}" for k, v in entry(request.get("options")).items() if v not in (None, "", False, 0)
    )
    if options:
        yield f"  options: {options}"
    if request.get("step"):
        yield f"  last step committed: {clean(request.get('step'))}"
    yield from _before(entry(request.get("evidence")))
    outcome = entry(request.get("outcome"))
    if outcome.get("message"):
        yield f"  outcome: {clean(outcome.get('message'))}"
    for process in entries(outcome.get("processes")):
        yield f"    {clean(process.get('pid')):>8} {clean(process.get('name')):<16} ended {clean(process.get('how'))}"
    for hook in entries(outcome.get("cleanup")):
        yield f"    {ran(hook)}"


def _before(evidence: Json) -> Iterator[str]:
    """What was seen right before the first signal, each process on a line; `--json` has all of it."""
    processes = entries(evidence.get("processes"))
    said = _lines(evidence.get("said"), "")
    if processes or said:
        yield "  right before the first signal:"
    for process in processes[:_PROCESSES]:
        facts = [f"state {clean(process.get('state'))}", f"{clean(process.get('cpu_seconds'))} s of CPU"]
        rss = process.get("rss_bytes")
        facts += [f"{rss / 2**20:.1f} MiB"] if isinstance(rss, int) else []
        facts += [f"in {clean(process['wchan'])}"] if process.get("wchan") else []
        facts += [f"listens on {', '.join(map(clean, _list(process['ports'])))}"] if process.get("ports") else []
        facts += ["gone meanwhile"] if process.get("gone") else []
        facts += [f"{clean(k)} not read: {clean(v)}" for k, v in entry(process.get("failed")).items()]
        yield _cut(f"    {clean(process.get('pid')):>8} {clean(process.get('name')):<16} {', '.join(facts)}")
    omitted = evidence.get("omitted")
    more = max(0, len(processes) - _PROCESSES) + (omitted if isinstance(omitted, int) else 0)
    if more:
        yield f"    ... and {more} more processes"
    for line in said:
        yield f"    {line}"
    for line in _facts({key: value for key, value in evidence.items() if key not in ("processes", "said")}):
        yield f"  {line}"


def _facts(evidence: object) -> list[str]:
    """Evidence as `key: value` lines, without what is told elsewhere, cut where it gets long (`--json` has all)."""
    told = {key: value for key, value in entry(evidence).items() if key not in _TOLD_ELSEWHERE}
    lines = _lines(told, "")
    if len(lines) > _EVIDENCE_LINES:
        return [*lines[:_EVIDENCE_LINES], f"... {len(lines) - _EVIDENCE_LINES} more lines (--json)"]
    return lines


def _lines(evidence: object, prefix: str) -> list[str]:
    lines: list[str] = []
    for key, value in entry(evidence).items():
        name = f"{prefix}{key}"
        if value in (None, "", [], {}):
            continue
        if isinstance(value, dict):
            lines += _lines(value, f"{name}.")
        elif isinstance(value, list) and key in ("output", "screen"):
            lines += [_cut(f"{name}: {line}") for line in value]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [_cut(f"{name}: " + ", ".join(f"{k} {v}" for k, v in item.items())) for item in entries(value)]
        else:
            lines.append(_cut(f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}"))
    return lines


def _cut(text: str) -> str:
    text = clean(text)
    return text if len(text) <= _LINE else text[: _LINE - 1] + "…"


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
