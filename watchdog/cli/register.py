"""`register`: register an agent that another program starts."""

import argparse
import os
import shlex
import urllib.parse

from watchdog.cli.output import clean, entry, refused, say, say_json, warn
from watchdog.cli.verb import Verbs, add_verb, ask, span

_HELP = """\
Register an agent that you start yourself, and print what the agent needs in its environment:

    eval "$(agent-watchdog register --name nightly --pid $$ --stall-after 10m)"
    agent-watchdog beat          # or: systemd-notify WATCHDOG=1

The agent is not killed for silence before its first heartbeat, unless --stall-after is given. The pid must be a process
of your own uid. `agent-watchdog run` starts the program, does all of this, and reports its exit status too.
"""

_MARKS = ("AGENT_WATCHDOG_ID", "AGENT_WATCHDOG_SOCKET", "NOTIFY_SOCKET")


def add_verbs(verbs: Verbs) -> None:
    """Add the parser of `register`."""
    parser = add_verb(verbs, "register", "register an agent that you start yourself", _HELP)
    parser.add_argument("--name", required=True, help="1 to 64 of A-Z a-z 0-9 . _ -; unique among your living agents")
    parser.add_argument("--pid", type=int, help="its main process; if omitted, give it later (PATCH /v1/agents/ID)")
    parser.add_argument("--replace", action="store_true", help="kill your living agent of that name first")
    parser.add_argument("--tag", action="append", default=[], metavar="T", help="a tag, for `kill tag:T` (repeatable)")
    parser.add_argument("--type", default="", metavar="T", help="claude, codex, ...: which policy applies")
    parser.add_argument("--task", metavar="ID", help="the task it works on; its status is written back")
    parser.add_argument("--parent", metavar="AGENT", help="the agent that starts it (default: the one we run in)")
    parser.add_argument("--stall-after", type=span, metavar="D", help="silence that is too long, like 120s or 15m")
    parser.add_argument(  # `--beat-every` as in `run`
        "--beat-every",
        "--interval",
        dest="interval",
        type=span,
        metavar="D",
        help="the interval at which it sends heartbeats",
    )
    parser.add_argument("--ttl", type=span, metavar="D", help="kill it after that long, whatever it does")
    parser.add_argument("--worktree", metavar="DIR", help="its git worktree, cleaned up after it has ended")
    parser.add_argument("--temp-dir", metavar="DIR", help="its temp dir, removed after it has ended")
    parser.add_argument("--beat-file", metavar="FILE", help="a file whose change counts as a heartbeat")
    parser.add_argument("--log", metavar="FILE", help="its log: growth is a sign of work, not a heartbeat")
    parser.add_argument("--transcript", metavar="FILE", help="its transcript, likewise")
    parser.add_argument("--queued", action="store_true", help="it is queued: not judged before it has a pid")
    parser.set_defaults(call=register)


def register(arguments: argparse.Namespace) -> int:
    """Register, then print lines for `eval`."""
    if arguments.temp_dir == "auto":
        warn("--temp-dir auto: only `run` can set TMPDIR for the agent; make a directory and name it")
        return 64
    body: dict[str, object] = {
        "name": arguments.name,
        "pid": arguments.pid,
        "type": arguments.type,
        "tags": arguments.tag,
        "task": arguments.task,
        "parent": arguments.parent or _surrounding(arguments),
        "stall_after_seconds": arguments.stall_after,
        "interval_seconds": arguments.interval,
        "ttl_seconds": arguments.ttl,
        "worktree": _absolute(arguments.worktree),
        "temp_dir": _absolute(arguments.temp_dir),
        "beat_file": _absolute(arguments.beat_file),
        "log": _absolute(arguments.log),
        "transcript": _absolute(arguments.transcript),
        "queued": arguments.queued,
        "replace": arguments.replace,
    }
    body = {key: value for key, value in body.items() if value is not None}
    status, answer = ask(arguments, "POST", "/v1/agents", body, timeout=200.0 if arguments.replace else 10.0)
    if status >= 300:
        return refused(status, answer)
    if arguments.json:
        say_json(answer)
        return 0
    told = entry(answer.get("env"))
    for key in _MARKS:  # no others: a shell evaluates these lines, and would accept PATH or LD_PRELOAD too
        if isinstance(value := told.get(key), str):
            say(f"export {key}={shlex.quote(clean(value))};")
    # A comment, so it must be last: unquoted `eval $(...)` joins the lines.
    say(f"# agent {clean(answer.get('agent_id'))} ({clean(answer.get('name'))})")
    if arguments.pid is None and not arguments.queued:
        warn(
            "no --pid: it counts as starting, later as failed to start, until it has a pid (PATCH"
            " /v1/agents/ID) or sends a heartbeat"
        )
    if arguments.worktree is not None and not os.path.isdir(arguments.worktree):
        warn(f"--worktree {clean(arguments.worktree)} does not exist yet")
    notes = answer.get("notes")
    for note in notes if isinstance(notes, list) else []:
        warn(clean(note))
    return 0


def _surrounding(arguments: argparse.Namespace) -> str | None:
    """The living agent in whose environment we run, if it is this daemon's; an outdated marker is not an error."""
    marker = os.environ.get("AGENT_WATCHDOG_ID")
    if not marker:
        return None
    status, answer = ask(arguments, "GET", f"/v1/agents/{urllib.parse.quote(marker, safe='')}")
    living = entry(answer.get("agent")).get("status") in ("queued", "starting", "running")
    return marker if status == 200 and living else None


def _absolute(path: str | None) -> str | None:
    """The absolute path with links resolved, with the user's rights; later the cleanup follows none."""
    return None if path is None else os.path.realpath(path)
