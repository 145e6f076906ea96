"""`reload`: have the daemon read its configuration again, and wait for the result."""

import argparse

from watchdog.cli.output import clean, refused, say, say_json, warn
from watchdog.cli.verb import Verbs, add_verb, ask, socket_of
from watchdog.errors import DaemonUnreachable

_RELOAD = """\
Have the daemon read its configuration again and wait for the result; `systemctl reload agent-watchdog` does this. The
file is adopted as a whole or not at all: if it has a fault the former settings stay in force, each fault is printed,
and the exit status is 78. SIGHUP does the same without an answer.
"""
_NO_FILE = "defaults"  # the daemon's name for its configuration without a file
_SECONDS = 60.0  # reading may take 10 s, and a running sweep is waited for


def add_verbs(verbs: Verbs) -> None:
    """Add the parser of `reload`."""
    parser = add_verb(verbs, "reload", "have the daemon read its configuration again, and report the result", _RELOAD)
    parser.add_argument(
        "--pid", type=int, metavar="N", help="only if the daemon at the socket has that pid (for the unit)"
    )
    parser.set_defaults(call=reload)


def reload(arguments: argparse.Namespace) -> int:
    """Request the reload, and print what was rejected."""
    if arguments.pid is not None:
        code, answer = ask(arguments, "GET", "/v1/status")
        if code >= 300:
            return refused(code, answer)
        if answer.get("pid") != arguments.pid:
            raise DaemonUnreachable(
                f"{socket_of(arguments)} is served by process {answer.get('pid')}, not by {arguments.pid}; with another"
                " daemon.runtime_dir the unit needs Environment=AGENT_WATCHDOG_SOCKET=RUNTIME_DIR/control.sock"
            )
    code, answer = ask(arguments, "POST", "/v1/reload", {}, timeout=_SECONDS)
    if code >= 300:
        return refused(code, answer)
    problems, waiting = answer.get("problems"), answer.get("waiting")
    if arguments.json:
        say_json(answer)
    for problem in problems if isinstance(problems, list) else []:
        warn(clean(problem))
    if not answer.get("success"):
        warn("the configuration was not adopted; the former settings stay in force")
        return 78
    if not arguments.json:
        config = answer.get("config")
        if config == _NO_FILE:
            say("there is no configuration file: the defaults were adopted")
        else:
            say(f"{clean(config)} was adopted")
        for key in waiting if isinstance(waiting, list) else []:
            say(f"{clean(key)} also changed, and takes effect after a restart")
    return 0
