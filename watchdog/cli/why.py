"""The text of `why`: turns the daemon's JSON about one agent into lines for a person. Prints nothing itself."""

import shlex
from collections.abc import Iterator

from watchdog.cli.output import ELSEWHERE, NEEDS_PERSON, Json, ago, clean, clock, entries, entry, local, ran

_EVIDENCE_LINES = 12
_PROCESSES = 20
_LINE = 110
_LINES_OF_TABLE = 9  # of verdicts: the first that applies wins (agent-watchdog(7), VERDICT)
# Evidence that the line itself, the heading or the kill request's part already shows; `--json` has all.
_TOLD_ELSEWHERE = frozenset(
    {
        *("agent_id", "name", "host", "boot_id", "start_ticks", "pidfd_inode", "request_id", "task_id", "reason"),
        *("success", "action", "message", "status", "killed_at", "killed_gracefully", "kill_signal", "omitted"),
        *("grace_period_seconds", "seconds_since_heartbeat", "exit_code", "exit_signal", "processes", "cleanup"),
        *("hook", "outcome", "attempt", "resumable", "stop_reason", "resume"),
    }
)
_FIRST_MOMENTS, _LAST_MOMENTS = 5, 35  # entries of a history that are shown; `events --agent` has all
_HOOK_TRIES = frozenset({"cleanup.hook_finished", "cleanup.hook_failed", "cleanup.hook_retried"})
_BY_ITSELF = frozenset({"gone", "lost"})
_NOT_AGAIN = "so it is not tried again"  # of a hook that the configuration no longer has
_REASONS = {
    "stalled": "it had stalled",
    "expired": "its time to live was over",
    "lingering": "it still ran after it had said `done`",
    "failed_to_start": "it had not started in time",
    "operator": "a person wanted it killed",
    "stop": "a person wanted it stopped",
    "orphaned": "its processes had outlived it",
}
# The options that matter; `cleanup` only if it is off.
_OPTIONS = {
    "force": "by KILL at once",
    "only_ask": "only asked, not signalled",
    "cancel": "its task was cancelled",
    "cleanup": "without cleanup",
}


def story(answer: Json) -> Iterator[str]:
    """All lines: what it is, what happened, what comes next and what to do; then the evidence for it."""
    agent = entry(answer.get("agent"))
    yield from _heading(agent)
    yield ""
    yield "what happened"
    if answer.get("history_problem"):
        yield f"  its history cannot be read now: {clean(answer['history_problem'])}"
        yield "  what follows is from the daemon's memory; its log has the events"
    yield from _timeline(answer)
    yield ""
    yield "what happens next, and what to do"
    yield from _next(answer)
    yield ""
    yield "details"
    yield from _details(agent)
    yield ""
    yield "evidence now" if agent.get("completed_at") is None else "evidence when it ended"
    yield from _signals(agent)
    members = entries(agent.get("members"))
    if members:
        yield ""
        age = agent.get("members_age_seconds")
        yield "its processes at the last scan" + ("" if age is None else f", {ago(age)} ago")
        for member in members:
            if member.get("state") == "?":  # its name is from the last scan, maybe before its exec
                main = member.get("pid") == agent.get("pid")
                name = clean(agent.get("command") if main else "") or "-"
                yield f"  {clean(member.get('pid')):>8} {name:<16} cannot be read, known by {clean(member.get('via'))}"
                continue
            yield (
                f"  {clean(member.get('pid')):>8} {clean(member.get('name')):<16} {_state(member)}, "
                f"known by {clean(member.get('via'))}, {clean(member.get('cpu_seconds'))} s of CPU"
            )
    for request in entries(answer.get("requests")):
        yield ""
        yield from _request(request)


def _heading(agent: Json) -> Iterator[str]:
    verdict = None if agent.get("completed_at") else agent.get("verdict")
    word = (
        ELSEWHERE
        if verdict and agent.get("elsewhere")
        else NEEDS_PERSON
        if verdict and agent.get("needs_person")
        else clean(verdict)
    )
    yield f"{clean(agent.get('name'))}  {clean(agent.get('status'))}{', ' if word else ''}{word}"
    if agent.get("why"):
        row = f" (line {agent['line']} of {_LINES_OF_TABLE})" if agent.get("line") else ""
        yield f"  {clean(agent.get('why'))}{row}"
    for failed in _list(agent.get("cleanup_failed")):
        yield f"  {clean(failed)}"
    if agent.get("held"):
        yield f"  HELD: {local(agent.get('held'))}"
    if agent.get("held_back"):
        yield f"  KILL HELD BACK: {local(agent.get('held_back'))}"
    if agent.get("note"):
        yield f"  note: {clean(agent.get('note'))}"


def _next(answer: Json) -> Iterator[str]:
    """What would change its state on its own, then what a person can do."""
    agent = entry(answer.get("agent"))
    for sentence in _list(agent.get("outlook")):
        yield f"  {local(sentence)}"
    ended, target = agent.get("completed_at") is not None, clean(agent.get("name"))
    if not ended:
        yield from _stopped(agent)
    if agent.get("needs_person") and not ended:
        pane = agent.get("pane")
        yield f"  do: answer it{f' in its pane: {clean(pane)}' if pane else ' where it runs'}"
    failed = any(_NOT_AGAIN not in str(one) for one in _list(agent.get("cleanup_failed")))
    if failed and agent.get("status") == "ending":
        yield "  do: correct what the cleanup hook names; it is tried again by itself, at last by the reaper"
    elif failed:
        yield "  do: correct what the failed cleanup hook names; agent-watchdog reap then runs it again"
    for run in entries(answer.get("cleanup")):
        kept = run.get("hook") == "worktree" and run.get("status") == "kept"
        if kept and _list(entry(run.get("details")).get("reasons")) and agent.get("worktree"):
            tree = clean(shlex.quote(str(agent["worktree"])))
            yield f"  do: see what its worktree still holds: git -C {tree} status; and when that is saved elsewhere, or"
            yield f"      not needed: git -C {tree} worktree remove {tree} (which refuses uncommitted work)"
    if agent.get("status") == "unkillable":
        yield f"  do: free what holds its processes (above); agent-watchdog kill {target} tries again at once"
    for request in entries(answer.get("requests"))[-1:]:
        if resume := entry(request.get("outcome")).get("resume"):
            yield f"  do: to resume its conversation: {clean(resume)}"


def _stopped(agent: Json) -> Iterator[str]:
    """Processes that a signal has stopped: nothing of ours did that while it is running, and no verdict changes by it.

    An agent that is stopped in its terminal has that in its line, and its shell's `fg` for it.
    """
    stopped = [clean(member.get("pid")) for member in entries(agent.get("members")) if member.get("state") == "T"]
    if not stopped or agent.get("status") != "running" or "stopped in" in str(agent.get("why")):
        return
    main = clean(agent.get("pid"))
    which = f"Its main process ({main}) was" if main in stopped else f"Its process {stopped[0]} was"
    if main not in stopped and len(stopped) > 1:
        which = f"{len(stopped)} of its processes were"
    yield f"  {which} stopped at the last scan (state T: by a signal). If the agent is silent, that may be why."
    yield f"  do: if that is not wanted, let it go on: kill -CONT {' '.join(stopped)}"


def _state(process: Json) -> str:
    state = clean(process.get("state"))
    return "state T (stopped by a signal)" if state == "T" else f"state {state}"


def _details(agent: Json) -> Iterator[str]:
    pairs = [
        ("agent id", agent.get("agent_id")),
        ("owner", f"uid {agent.get('owner_uid')}"),
        ("pid", agent.get("pid") or "never registered"),
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
    """Each signal of a living agent with age and source, missing ones last; of an ended agent what its row has."""
    missing = []
    for signal in entries(agent.get("signals")):
        name, age = f"  {clean(signal.get('signal')):<11}", signal.get("age_seconds")
        if signal.get("says") is None:
            missing.append(f"{name} no evidence: {clean(signal.get('missing'))}")
        else:
            says, more = clean(signal.get("says")), clean(signal.get("more"))
            since = "" if age is None else f"{'' if says.endswith('the last') else ','} {ago(age)} ago"
            yield f"{name} {says}{since}{'; ' if more else ''}{more} [{clean(signal.get('trust'))}]"
    if agent.get("completed_at") is not None:
        beats, last = agent.get("beats"), clock(agent.get("last_heartbeat"))
        said = f"{clean(beats)} received, the last at {last}" if last else "none received"
        yield f"  heartbeat   {said}; silent for {ago(agent.get('silence_seconds'))} while it was watched"
        if agent.get("state"):
            yield f"  state       {clean(agent.get('state'))}, as it last reported"
        if agent.get("progress") is not None:
            yield f"  progress    {clean(agent.get('progress'))}"
    if agent.get("ttl_left_seconds") is not None:
        yield f"  time        {_time_left(agent.get('ttl_left_seconds'))}"
    yield from missing


def _time_left(seconds: object) -> str:
    if isinstance(seconds, int | float) and seconds < 0:
        return f"its time to live ended {ago(-seconds)} ago"
    return f"{ago(seconds)} of its time to live left"


def _timeline(answer: Json) -> Iterator[str]:
    """Events in the order in which they were recorded, which is the order of happening even if clocks were set.

    A hook's last try is shown once, by its run: at the place of its last event, else by its time. Of a long history
    only the beginning and the end.
    """
    has_task = bool(entry(answer.get("agent")).get("task_id"))
    runs = {clean(run.get("hook")): run for run in entries(answer.get("cleanup"))}
    told = set(runs)
    moments: list[tuple[str, list[str]]] = []
    for event in reversed(entries(answer.get("events"))):
        name, hook = event.get("event"), clean(entry(event.get("evidence")).get("hook"))
        if name == "cleanup.hook_skipped" and hook in told:
            continue  # its run has the reason
        run = runs.pop(hook, None) if name in _HOOK_TRIES else None
        if run is not None:
            moments.append((str(run.get("finished_at") or event.get("at")), _run(run)))
        elif name != "cleanup.hook_finished" or hook not in told:
            moments.append((str(event.get("at")), _event(event, has_task=has_task)))
    moments.reverse()
    for run in runs.values():
        at = str(run.get("finished_at") or run.get("started_at"))
        place = next((number for number, (other, _) in enumerate(moments) if other > at), len(moments))
        moments.insert(place, (at, _run(run)))
    if not moments:
        yield "  (its history is older than the registry keeps)"
    left_out = len(moments) - _FIRST_MOMENTS - _LAST_MOMENTS
    for number, (at, lines) in enumerate(moments):
        if number == _FIRST_MOMENTS and left_out > 0:
            yield f"  ... {left_out} events between (agent-watchdog events --agent {clean(_id(answer))})"
        if _FIRST_MOMENTS <= number < _FIRST_MOMENTS + left_out:
            continue
        yield f"  {clock(at)}  {lines[0]}"
        for line in lines[1:]:
            yield f"  {'':19}  {line}"


def _id(answer: Json) -> object:
    return entry(answer.get("agent")).get("agent_id")


def _event(event: Json, *, has_task: bool) -> list[str]:
    change = ""
    if event.get("to_status"):
        before = event.get("from_status")
        change = (
            f" ({clean(before)} → {clean(event.get('to_status'))})" if before else f" ({clean(event.get('to_status'))})"
        )
    evidence = entry(event.get("evidence"))
    pids = [clean(one) for one in _list(evidence.get("pids")) or [evidence.get("pid")] if one is not None]
    if event.get("event") == "kill.finished":
        pids = []  # only the agent's own pid, shown above; the text may be about others
    which = f" (pid {', '.join(pids[:_PROCESSES])})" if pids and pids[0] not in clean(event.get("why")) else ""
    first = f"{clean(event.get('event'))}{change}: {clean(event.get('why'))}{which} [by {_by(event.get('who'))}]"
    shown = {key: value for key, value in evidence.items() if key not in ("pid", "pids")}
    if not has_task:
        shown.pop("task_status", None)
    return [first, *_facts(shown)]


def _by(who: object) -> str:
    """The actor of an event: "daemon 4711" is the one with that pid."""
    name, _, pid = str(who).partition(" ")
    if name == "daemon" and (pid.isdecimal() or not pid):
        return "the daemon" + (f", pid {pid}" if pid else "")
    return clean(who)


def _run(run: Json) -> list[str]:
    return [ran(run), *_facts(run.get("details"))]


def _request(request: Json) -> Iterator[str]:
    reason, outcome = str(request.get("reason")), entry(request.get("outcome"))
    evidence, processes = entry(request.get("evidence")), entries(outcome.get("processes"))
    by_itself, short = reason in _BY_ITSELF, clean(request.get("request_id"))[:8]
    nothing = not any("after" in str(one.get("how")) for one in processes)
    if by_itself:
        what = "exited by itself" if reason == "gone" else "lost with its boot"
        yield f"its end ({short}): {what}{'; nothing was signalled' if outcome and nothing else ''}"
        yield f"  noticed {clock(request.get('created_at'))}, by {_by(request.get('by'))}"
    else:
        yield f"kill request {short}: {clean(request.get('status'))}"
        why = clean(_REASONS.get(reason, reason))
        yield f"  {clock(request.get('created_at'))}, by {_by(request.get('by'))}: {why}"
    options = entry(request.get("options"))
    if options.get("why") and (by_itself or not evidence):
        yield f"  {clean(options.get('why'))}"
    if isinstance(options.get("grace_seconds"), int | float):
        yield f"  with {ago(options['grace_seconds'])} between TERM and KILL"
    for key, words in _OPTIONS.items():
        if options.get(key) is (key != "cleanup"):
            yield f"  {words}"
    if request.get("step") and request.get("status") not in ("done", "withdrawn"):
        yield f"  it has got as far as step {clean(request.get('step'))}"
    yield from _before(evidence, "what was seen then" if by_itself else "right before the first signal")
    if outcome.get("message"):
        yield f"  outcome: {clean(outcome.get('message'))}"
    elif outcome.get("why"):
        yield f"  called off: {clean(outcome.get('why'))}"
    for process in processes:
        yield f"    {clean(process.get('pid')):>8} {clean(process.get('name')):<16} ended {clean(process.get('how'))}"
    for hook in entries(outcome.get("cleanup")):
        yield f"    {ran(hook)}"


def _before(evidence: Json, when: str) -> Iterator[str]:
    """What was seen at that time, a line per process; `--json` has all of it."""
    processes = entries(evidence.get("processes"))
    said = _lines(evidence.get("said"), "")
    if evidence:
        yield f"  {when}:"
    for process in processes[:_PROCESSES]:
        facts = [_state(process), f"{clean(process.get('cpu_seconds'))} s of CPU"]
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
        yield f"    {line}"


def _facts(evidence: object) -> list[str]:
    """Evidence as `key: value` lines, without what is shown elsewhere, truncated (`--json` has all)."""
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
