"""`list`: the agents that are watched, the most urgent first."""

import argparse
import json
import os
import sys
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from watchdog.cli.diagnosis import attention, standstill
from watchdog.cli.output import (
    ELSEWHERE,
    NEEDS_PERSON,
    ago,
    clean,
    entries,
    local,
    read_on,
    refused,
    say,
    say_json,
    table,
    warn,
)
from watchdog.cli.seen import Seen, has_systemd, sweep_age
from watchdog.cli.verb import Json, Verbs, add_verb, ask
from watchdog.core.agent import ENDED
from watchdog.core.names import name_problem
from watchdog.errors import DaemonBusy, DaemonUnreachable

_LIST = """\
The agents that are watched, one a line, the most urgent first: their status, the verdict of the last sweep, how long
they have been silent and how long they may be, and the reason. Ages are current; a verdict that depends on time alone
is at most one sweep interval old. An agent that waits for a person shows "needs a person" instead of its verdict, one
that another daemon of this host watches shows "elsewhere"; one that has ended has no verdict, and a failed cleanup is
named.

The first lines sum up, and say why the daemon kills no agent at present, if so: a hold, a doubt of its own, a registry
that is unavailable. --watch reconnects when the daemon is restarted.

--all-hosts also shows other hosts' agents, as their daemons last recorded them; HOST (the first 8 characters of a
machine-id) is what other verbs take after an @: `why NAME@HOST`, `kill NAME@HOST`, `hold NAME@HOST`.

Of other users' agents you see name, id, owner, status and verdict. `why NAME` tells one agent's whole story.
"""
_WATCH_SECONDS = 2.0
_NOTE = 120  # characters of an agent's own text
_PART = 500  # and of each other part of a reason: a truncated remedy is useless
# What a person has to take care of first; then the rest.
_URGENCY = (
    "unkillable",
    NEEDS_PERSON,
    "stalled",
    "expired",
    "lingering",
    "gone",
    "late",
    "unknown",
    "ending",
    ELSEWHERE,
)
_RANKS = {word: rank for rank, word in enumerate(_URGENCY)}
_SETTLED = frozenset({"unkillable", "ending", "queued"})  # statuses that say more than a verdict
_DOOMED = frozenset({"stalled", "expired", "lingering", "gone"})  # verdicts that a person's answer does not change


def add_verbs(verbs: Verbs) -> None:
    """Add the parser of `list`."""
    parser = add_verb(verbs, "list", "the agents that are watched, with verdict and silence", _LIST)
    parser.add_argument("--all", action="store_true", help="also agents that have ended")
    parser.add_argument("--all-hosts", action="store_true", help="also agents of other hosts that share the registry")
    parser.add_argument("--tag", metavar="T", help="only agents with that tag")
    parser.add_argument("--names", action="store_true", help="names only, one a line (for completion and scripts)")
    parser.add_argument("--watch", action="store_true", help="refresh every 2 seconds, until Ctrl-C")
    parser.set_defaults(call=list_agents)


def list_agents(arguments: argparse.Namespace) -> int:
    """Print the agents once, or repeatedly, then also across restarts of the daemon."""
    away, first = False, True
    while True:
        try:
            status = _once(arguments, first=first or away)
        except (DaemonUnreachable, DaemonBusy) as error:
            if first:
                raise
            if not away:
                warn(f"{clean(str(error).partition(chr(10))[0])}; waiting for the daemon")
            away = True
        else:
            if status or not arguments.watch or arguments.names:
                return status
            away, first = False, False
        read_on(seconds=_WATCH_SECONDS)


def _once(arguments: argparse.Namespace, *, first: bool) -> int:
    query = {"all": "1"} if arguments.all else {}
    if arguments.all_hosts:
        query["all_hosts"] = "1"
    if arguments.tag:
        query["tag"] = arguments.tag
    code, answer = ask(arguments, "GET", "/v1/agents" + (f"?{urllib.parse.urlencode(query)}" if query else ""))
    if code >= 300:
        return refused(code, answer)
    agents = entries(answer.get("agents"))
    if arguments.names:
        for name in dict.fromkeys(str(agent.get("name")) for agent in agents):
            if name_problem(name) is None:  # a foreign registry's name may be anything, which a shell might expand
                say(name)
    elif arguments.json:
        say(json.dumps(answer)) if arguments.watch else say_json(answer)
    else:
        code, facts = ask(arguments, "GET", "/v1/status")
        _print([*_banner(facts if code < 300 else {}), *_lines(agents, arguments)], arguments, first=first)
    return 0


def _print(lines: list[str], arguments: argparse.Namespace, *, first: bool) -> None:
    """Print all lines; in watch mode on a terminal as many as fit, in place of the former ones."""
    if not arguments.watch or not sys.stdout.isatty():
        for line in lines:
            say(line)
        return
    rows = os.get_terminal_size(sys.stdout.fileno()).lines or 24
    if len(lines) >= rows:
        kept = max(1, rows - 2)
        lines = [
            *lines[:kept],
            f"... and {len(lines) - kept} more lines: enlarge the window, or use list without --watch",
        ]
    # Line by line: many terminals move a cleared screen into their scrollback, every 2 seconds.
    drawn = "".join(f"{line}\x1b[K\n" for line in lines)
    sys.stdout.write(("\x1b[H\x1b[2J" if first else "\x1b[H") + drawn + "\x1b[J")


def _banner(status: Json) -> Iterator[str]:
    """Why no agent is judged or killed at the moment, each reason with its remedy.

    ATTENTION has the same meaning as in `status`; a temporary hold of the daemon, and observe mode, are notes.
    """
    age, systemd = sweep_age(status, datetime.now(UTC)), has_systemd(status.get("uid"))
    seen = Seen(uid=os.geteuid(), status=status, sweep_age=age, systemd=systemd)
    needed, found = attention(seen), standstill(seen)
    lines = [f"{clean(one.what)}; {clean(one.meaning)}; do: {clean(one.todo)}" for one in found]
    yield from (f"ATTENTION: {line}" for one, line in zip(found, lines, strict=True) if one in needed)
    yield from (f"note: {line}" for one, line in zip(found, lines, strict=True) if one not in needed)
    doubts, lasting = status.get("doubts"), status.get("lasting_doubts")
    told = lasting if isinstance(lasting, list) else []
    for why in doubts if isinstance(doubts, list) else []:
        if why not in told:
            yield f"note: kills for silence are held back: {clean(why)}; do: agent-watchdog unhold ends that"


def _lines(agents: list[Json], arguments: argparse.Namespace) -> Iterator[str]:
    if not agents:
        yield "no agents" + (f" with tag {clean(arguments.tag)}" if arguments.tag else "") + " are watched"
        return
    yield _summary(agents)
    head = ["NAME", "ID", "UID", "STATUS", "VERDICT", "SILENT", "PID", "TASK", "WHY"]
    newest = sorted(agents, key=lambda agent: str(agent.get("completed_at") or ""), reverse=True)
    agents = sorted(newest, key=_order)
    rows = [_row(agent) for agent in agents]
    if arguments.all_hosts:
        head.insert(1, "HOST")
        for row, agent in zip(rows, agents, strict=True):
            row.insert(1, _short(agent.get("host")))
    yield from table(head, rows)


def _summary(agents: list[Json]) -> str:
    """The number of agents of each kind, the most urgent first."""
    words = Counter(_word(agent) for agent in agents if not _ended(agent))
    said = ", ".join(
        f"{count} {clean(word).replace('needs', 'need') if count > 1 else clean(word)}"
        for word, count in sorted(words.items(), key=lambda pair: (_rank(pair[0]), pair[0]))
    )
    living, ended = words.total(), len(agents) - words.total()
    failed = sum(bool(_failed(agent)) for agent in agents if _ended(agent))
    parts = [f"{living} agent{'' if living == 1 else 's'}{': ' if said else ''}{said}"]
    if ended:
        parts.append(f"{ended} ended" + (f", {failed} of them with a failed cleanup" if failed else ""))
    return "; ".join(parts)


def _ended(agent: Json) -> bool:
    return agent.get("completed_at") is not None or agent.get("status") in ENDED


def _word(agent: Json) -> str:
    """The word for a living agent's state."""
    status, verdict = str(agent.get("status")), agent.get("verdict")
    if status in _SETTLED:
        return status
    if agent.get("elsewhere") and verdict != "gone":
        return ELSEWHERE
    if agent.get("needs_person") and verdict not in _DOOMED:
        return NEEDS_PERSON
    return str(verdict or status)


def _rank(word: str) -> int:
    return _RANKS.get(word, len(_RANKS))


def _order(agent: Json) -> tuple[bool, int, str, str]:
    """Living agents by urgency and name; then ended ones, those with a failed cleanup first, then the newest."""
    if _ended(agent):
        return True, not _failed(agent), "", ""
    return False, _rank(_word(agent)), str(agent.get("name")), str(agent.get("created_at"))


def _short(host: object) -> str:
    """A host as it may be given after an @: the first characters of a machine-id suffice."""
    text = "" if host is None else str(host)
    return text[:8] if len(text) == 32 else text


def _failed(agent: Json) -> list[str]:
    said = agent.get("cleanup_failed")
    return [str(one) for one in said] if isinstance(said, list) else []


def _cut(text: str, most: int) -> str:
    """The text, truncated with a mark."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _row(agent: Json) -> list[object]:
    ended, silent = _ended(agent), ""
    word = "" if ended else _word(agent)
    # A starting agent has another limit, which WHY shows; a second number would mean something else.
    begun = agent.get("verdict") != "starting"
    if begun and word != ELSEWHERE and agent.get("promised") and agent.get("after_seconds") is not None:
        counted = agent.get("counted_seconds", agent.get("silence_seconds"))  # another host's row has only the latter
        counts = agent.get("verdict") != "waiting"  # otherwise its silence has no limit, or another one
        silent = f"{ago(counted)} of {ago(agent.get('after_seconds'))}" if counts else ago(counted)
    why = [f"held: {local(agent['held'])}"] if agent.get("held") else []
    why += [f"kill held back: {local(agent['held_back'])}"] if agent.get("held_back") else []
    why += [*_failed(agent), str(agent.get("why") or "")]
    why += [_cut(f"note: {agent['note']}", _NOTE)] if agent.get("note") and not ended else []
    return [
        agent.get("name"),
        str(agent.get("agent_id") or "")[:8],
        agent.get("owner_uid"),
        agent.get("status"),
        word if word in (NEEDS_PERSON, ELSEWHERE) else "-" if ended else agent.get("verdict") or "-",
        silent or "-",
        "-" if ended else agent.get("pid") or "-",  # the pid may have been reused
        agent.get("task_id") or "-",
        "; ".join(_cut(part, _PART) for part in why if part),
    ]
