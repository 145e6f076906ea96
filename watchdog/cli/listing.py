"""`list`: who is watched."""

import argparse
import json
import sys
import urllib.parse

from watchdog.cli.asking import Json, Verbs, add_verb, ask
from watchdog.cli.output import ago, clean, entries, read_on, refused, say, say_json, table
from watchdog.core.names import name_problem

_LIST = """\
The agents that are watched, one a line: what they are (status), what is made of it (verdict), how long they have been
silent of what is allowed, and in the last column why. All ages are of now; a verdict that time alone changes is that of
the last look, one interval old at most.

With --all-hosts other hosts' agents too, as their daemons last wrote them; HOST (a machine-id's first 8 characters) is
what other verbs take after an @: `why NAME@HOST`, `kill NAME@HOST`, `hold NAME@HOST`.

Of other people's agents you see name, id, owner, status and verdict. `why NAME` tells one agent's whole story.
"""
_WATCH_SECONDS = 2.0


def add_verbs(verbs: Verbs) -> None:
    """Add the parser of `list`."""
    parser = add_verb(verbs, "list", "who is watched, with verdict and silence", _LIST)
    parser.add_argument("--all", action="store_true", help="agents that have ended, too")
    parser.add_argument(
        "--all-hosts", action="store_true", help="other hosts' agents too, where hosts share a registry"
    )
    parser.add_argument("--tag", metavar="T", help="only agents with that tag")
    parser.add_argument("--names", action="store_true", help="names alone, one a line (for completion and scripts)")
    parser.add_argument("--watch", action="store_true", help="again every 2 seconds, until Ctrl-C")
    parser.set_defaults(call=list_agents)


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
        if arguments.names:
            for name in dict.fromkeys(str(agent.get("name")) for agent in entries(answer.get("agents"))):
                if name_problem(name) is None:  # a foreign registry's may be anything, and a shell may expand these
                    say(name)
            return 0
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
