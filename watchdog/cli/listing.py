"""`list` and `status`: who is watched, and whether the watchdog itself does its work."""

import argparse
import json
import sys
import urllib.parse

from watchdog.cli.asking import Json, Verbs, add_verb, ask
from watchdog.cli.output import ago, clean, clock, entries, entry, read_on, refused, say, say_json, table

_LIST = """\
The agents that are watched, one a line: what they are (status), what is made of it (verdict), how long they have been
silent of what is allowed, and in the last column why. All ages are of now; a verdict that time alone changes is that of
the last look, one interval old at most.

With --all-hosts other hosts' agents too, as their daemons last wrote them; HOST (a machine-id's first 8 characters) is
what other verbs take after an @: `why NAME@HOST`, `kill NAME@HOST`, `hold NAME@HOST`.

Of other people's agents you see name, id, owner, status and verdict. `why NAME` tells one agent's whole story.
"""
_STATUS = """\
Whether the daemon does its work: when it last looked, how many agents in which verdict, holds that are on, kills that
are open. If this does not answer (exit status 69), nothing is watched.
"""
_SHOWN = 8  # processes that cannot be read
_WATCH_SECONDS = 2.0


def add_verbs(verbs: Verbs) -> None:
    """Add the parsers of `list` and `status`."""
    parser = add_verb(verbs, "list", "who is watched, with verdict and silence", _LIST)
    parser.add_argument("--all", action="store_true", help="agents that have ended, too")
    parser.add_argument(
        "--all-hosts", action="store_true", help="other hosts' agents too, where hosts share a registry"
    )
    parser.add_argument("--tag", metavar="T", help="only agents with that tag")
    parser.add_argument("--watch", action="store_true", help="again every 2 seconds, until Ctrl-C")
    parser.set_defaults(call=list_agents)
    add_verb(verbs, "status", "whether the watchdog itself is well", _STATUS).set_defaults(call=status)


def list_agents(arguments: argparse.Namespace) -> int:
    """Print the agents once, or again and again."""
    query = {"all": "1"} if arguments.all else {}
    if arguments.all_hosts:
        query["all_hosts"] = "1"
    if arguments.tag:
        query["tag"] = arguments.tag
    path = "/v1/agents" + (f"?{urllib.parse.urlencode(query)}" if query else "")
    while True:
        code, answer = ask(arguments, "GET", path)
        if code >= 300:
            return refused(code, answer)
        if arguments.watch and sys.stdout.isatty() and not arguments.json:
            sys.stdout.write("\x1b[H\x1b[2J")
        if arguments.json:
            say(json.dumps(answer)) if arguments.watch else say_json(answer)
        else:
            _print(entries(answer.get("agents")), arguments)
        if not arguments.watch:
            return 0
        read_on(seconds=_WATCH_SECONDS)


def _print(agents: list[Json], arguments: argparse.Namespace) -> None:
    if not agents:
        say("no agents" + (f" with tag {clean(arguments.tag)}" if arguments.tag else "") + " are watched")
        return
    head = ["NAME", "ID", "UID", "STATUS", "VERDICT", "SILENT", "PID", "TASK", "WHY"]
    agents = sorted(agents, key=_order)
    rows = [_row(agent) for agent in agents]
    if arguments.all_hosts:
        head.insert(1, "HOST")
        for row, agent in zip(rows, agents, strict=True):
            row.insert(1, _short(agent.get("host")))
    table(head, rows)


def _order(agent: Json) -> tuple[bool, str, str]:
    ended = agent.get("completed_at") is not None
    return ended, str(agent.get("name")), str(agent.get("created_at"))


def _short(host: object) -> str:
    """A host as one may name it after an @: of a machine-id the first characters do."""
    text = "" if host is None else str(host)
    return text[:8] if len(text) == 32 else text


def _row(agent: Json) -> list[object]:
    silent = ""
    if agent.get("promised") and agent.get("after_seconds") is not None:
        counted = agent.get("counted_seconds", agent.get("silence_seconds"))  # another host's row has the latter alone
        silent = f"{ago(counted)} of {ago(agent.get('after_seconds'))}"
    why = str(agent.get("why") or "")
    for word, value in (("held", agent.get("held")), ("note", agent.get("note"))):
        if value:
            why += f"{'; ' if why else ''}{word}: {value}"
    return [
        agent.get("name"),
        str(agent.get("agent_id") or "")[:8],
        agent.get("owner_uid"),
        agent.get("status"),
        agent.get("verdict") or "-",
        silent or "-",
        agent.get("pid") or "-",
        agent.get("task_id") or "-",
        why[:120],
    ]


def status(arguments: argparse.Namespace) -> int:
    """Print what the daemon says of itself."""
    code, answer = ask(arguments, "GET", "/v1/status")
    if code >= 300:
        return refused(code, answer)
    if arguments.json:
        say_json(answer)
        return 0
    problem = answer.pop("registry_problem", None)
    plain = {key: value for key, value in answer.items() if not isinstance(value, dict | list)}
    width = max((len(key) for key in plain), default=0)
    for key, value in plain.items():
        say(f"{clean(key).ljust(width)}  {clock(value) if key.endswith('_at') else clean(value)}")
    if problem:
        say(f"{'registry'.ljust(width)}  cannot be used, nobody is ended: {clean(problem)}")
    for key, what in (("config_problems", "unusable, the former holds"), ("config_waiting", "waits for a restart")):
        lines = answer.get(key)
        for line in lines if isinstance(lines, list) else []:
            say(f"{'config'.ljust(width)}  {what}: {clean(line)}")
    for path, one in entry(answer.get("disk_reserve")).items():
        if entry(one).get("disk_full"):
            left = f"{clean(entry(one).get('bytes'))} bytes of {clean(path)} are left"
            say(f"{'disk'.ljust(width)}  is full, the reserve is in use: {left}")
    for one in entries(answer.get("unreadable"))[:_SHOWN]:
        say(
            f"{'unreadable'.ljust(width)}  process {clean(one.get('pid'))} of uid {clean(one.get('uid'))}: a read of"
            f" {clean(one.get('file'))} hangs"
        )
    if (more := len(entries(answer.get("unreadable"))) - _SHOWN) > 0:
        say(f"{'unreadable'.ljust(width)}  and {more} more (--json)")
    for one in entries(answer.get("limited")):
        times = f"{clean(one.get('refused'))} times since {clock(one.get('since'))}"
        say(f"{'limited'.ljust(width)}  uid {clean(one.get('uid'))}: {clean(one.get('why'))}; {times}")
    for uid, used in entry(answer.get("users_over_share")).items():
        say(f"{'share'.ljust(width)}  uid {clean(uid)} has more of the registry than it may: {clean(used)} bytes")
    log = entry(answer.get("log"))
    trouble = f", {clean(log.get('error'))}" if log.get("error") else ""
    say(f"{'log'.ljust(width)}  {clean(log.get('target'))}, lost lines: {clean(log.get('lost'))}{trouble}")
    for what, seconds in entry(answer.get("waits_for")).items():
        say(f"{'no answer'.ljust(width)}  {clean(what)}, for {clean(seconds)} s")
    for key in ("verdicts", "statuses"):
        tally = ", ".join(f"{clean(count)} {clean(name)}" for name, count in entry(answer.get(key)).items())
        say(f"{key.ljust(width)}  {tally or 'none'}")
    holds = entries(answer.get("holds"))
    doubts = answer.get("doubts")
    own = doubts if isinstance(doubts, list) else []
    say(f"{'holds'.ljust(width)}  {'none' if not holds and not own else ''}".rstrip())
    for why in own:
        say(f"  the daemon's own: {clean(why)}; kills for silence are held back")
    for hold in holds:
        target = f"agent {clean(hold.get('agent_id'))[:8]}" if hold.get("agent_id") else "all agents"
        until = f", until {clock(hold.get('until'))}" if hold.get("until") else ""
        say(f"  {target}: {clean(hold.get('reason') or 'held')} (by uid {clean(hold.get('by_uid'))}{until})")
    return 0
