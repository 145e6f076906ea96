"""`events` and `why`: what happened, from the daemon's own history."""

import argparse
import json
import sys
import urllib.parse
from datetime import UTC, datetime, timedelta

from watchdog.cli.output import clean, clock, read_on, refused, say, say_json, warn
from watchdog.cli.verb import Json, Verbs, add_verb, ask, duration, socket_of
from watchdog.cli.why import story
from watchdog.client import client
from watchdog.errors import DaemonBusy, DaemonUnreachable

_EVENTS = """\
What happened, one event a line, oldest first. --after ID continues where you stopped: with --json each line has its id.
--since 2h omits older events. --follow waits for new events, and reconnects when the daemon is restarted; it exits with
its reader.
"""
_WHY = """\
One agent's whole story: what happened, in order of time; what happens next, and what to do; then the evidence: who
registered it, what it reported and when, what was observed, who requested its kill and why, what was done to each of
its processes, what cleanup removed or kept. Works for agents that have ended, too. Of a long history `why` shows the
beginning and the end; `events --agent NAME` has all of it.
"""
_RETRY_SECONDS = 1.0


def add_verbs(verbs: Verbs) -> None:
    """Add the parsers of `why` and `events`."""
    parser = add_verb(verbs, "why", "one agent's whole story, with evidence", _WHY)
    parser.add_argument("agent", metavar="AGENT", help="name, id or pid; NAME@HOST for another host's")
    parser.set_defaults(call=why)
    parser = add_verb(verbs, "events", "what happened, one event a line", _EVENTS)
    parser.add_argument("--agent", metavar="A", help="only events of this agent")
    parser.add_argument("--after", type=int, default=0, metavar="ID", help="only events with a higher id")
    parser.add_argument("--since", type=duration, metavar="D", help="only events of the last D, like 2h")
    parser.add_argument("-f", "--follow", action="store_true", help="wait for more, until Ctrl-C")
    parser.set_defaults(call=events)


def why(arguments: argparse.Namespace) -> int:
    """Print the story of one agent."""
    code, answer = ask(arguments, "GET", f"/v1/agents/{urllib.parse.quote(arguments.agent, safe='')}")
    if code >= 300:
        return refused(code, answer)
    if arguments.json:
        say_json(answer)
        return 0
    for line in story(answer):
        say(line)
    return 0


def events(arguments: argparse.Namespace) -> int:
    """Print the history; with --follow continue across restarts of the daemon."""
    if arguments.after < 0:
        warn("--after: must be 0 or more")
        return 64
    after, agent = arguments.after, None
    arguments.begin = None
    if arguments.since is not None:
        arguments.begin = (datetime.now(UTC) - timedelta(seconds=arguments.since)).isoformat().replace("+00:00", "Z")
    if arguments.agent:
        code, answer = ask(arguments, "GET", f"/v1/agents/{urllib.parse.quote(arguments.agent, safe='')}")
        if code >= 300:
            return refused(code, answer)
        found = answer.get("agent")
        agent = str(found["agent_id"]) if isinstance(found, dict) else arguments.agent
    if not arguments.follow:
        for event in client.stream(_path(after, agent, follow=False), socket_of(arguments)):
            _print(event, arguments)
        return 0
    ask(arguments, "GET", "/v1/status")  # fail at once if there is no daemon now
    begun = False
    while True:
        try:
            for event in client.stream(_path(after, agent, follow=True), socket_of(arguments), wait=read_on):
                _print(event, arguments)
                identifier = event.get("id")
                after, begun = identifier if isinstance(identifier, int) else after, True
            warn(f"the daemon stops; waiting for the next one (last event {after})")
        except DaemonBusy:
            if not begun:
                raise
        except DaemonUnreachable:
            pass
        read_on(seconds=_RETRY_SECONDS)


def _path(after: int, agent: str | None, *, follow: bool) -> str:
    query = {"after": str(after)} | ({"agent": agent} if agent else {}) | ({"follow": "1"} if follow else {})
    return f"/v1/events?{urllib.parse.urlencode(query)}"


def _print(event: Json, arguments: argparse.Namespace) -> None:
    if arguments.begin is not None and str(event.get("at")) < arguments.begin:  # both UTC, ISO 8601
        return
    if arguments.json:
        say(json.dumps(event))
    else:
        change = f" {event['from_status'] or ''}→{event['to_status']}" if event.get("to_status") else ""
        agent = f" {clean(event.get('name') or '')} {clean(event.get('agent_id'))[:8]}" if event.get("agent_id") else ""
        say(
            f"{clean(event.get('id'))}  {clock(event.get('at'))}  {clean(event.get('event'))}{agent}{clean(change)}"
            f"  {clean(event.get('why'))} ({clean(event.get('who'))})"
        )
    sys.stdout.flush()
