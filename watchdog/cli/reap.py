"""`reap`: shows or cleans up what dead agents have left behind."""

import argparse

from watchdog.cli.output import clean, entries, refused, say, say_json
from watchdog.cli.verb import Verbs, add_verb, ask

_REAP = """\
Clean up what agents that have ended left behind: processes that outlived them, hooks that gave up, sockets, and in your
own places what is provably theirs. The daemon does this every ten minutes by itself; this command does it now.

  agent-watchdog reap --dry-run     what is there, what would be done, and why the rest stays

Leftovers are found by identity, marker and recorded path, never by a name. Anything that belongs to a living agent, is
spared, or belongs to an agent that this daemon does not know is left alone. Exit status 1 when something could not be
cleaned up.
"""
_SECONDS = 900.0


def add_verbs(verbs: Verbs) -> None:
    """Add the parser."""
    parser = add_verb(verbs, "reap", "clean up what dead agents left behind", _REAP)
    parser.add_argument("--dry-run", action="store_true", help="show what is there and why, and do nothing")
    parser.set_defaults(call=reap)


def reap(arguments: argparse.Namespace) -> int:
    """POST /reap."""
    code, answer = ask(arguments, "POST", "/v1/reap", {"dry_run": arguments.dry_run}, timeout=_SECONDS)
    if code >= 300:
        return refused(code, answer)
    if arguments.json:
        say_json(answer)
        return 0 if answer.get("success") else 1
    found = entries(answer.get("findings"))
    if not found:
        say("nothing that dead agents left")
    for one in found:
        whose = one.get("name") or str(one.get("agent_id") or "")[:8]
        size = "" if one.get("bytes") is None else f"{one.get('bytes')} bytes"
        known = clean(", ".join(str(word) for word in (whose, size) if word))
        kind, what = clean(one.get("kind")), clean(one.get("what"))
        kind = "" if kind in what else f"{kind} "
        say(f"{clean(one.get('action'))} {kind}{what}{known and f' ({known})'}")
        say(f"  {clean(one.get('why'))}")
        if one.get("outcome") is not None:
            say(f"  {clean(one.get('outcome'))}: {clean(one.get('message'))}")
    return 0 if answer.get("success") else 1
