"""All verbs of `agent-watchdog` except `run` and `beat`, which have their own argument parsers.

Verbs only: parse, call the daemon, print. One file per group; each adds its parsers and sets `call`. A new one is one
line in `GROUPS` and one module of that name here.

Exit status: 0 done (or already so), 1 a target failed, 64 usage, 69 no daemon, 74 output cannot be written, 75 try
again, 77 permission denied, 78 configuration. 2 is never used: it would make a vendor's hook runner block its agent.
"""

import argparse
import difflib
import os
import re
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

from watchdog.cli.output import clean, nobody_reads, warn
from watchdog.errors import DaemonUnreachable, WatchdogError

_EPILOG = """\
targets: a name, an agent id (or its first 8 characters), the pid of an agent, tag:X, task:X, type:X, stalled,
orphans (processes that outlived their agent), all. NAME@HOST means the agent NAME on another host, where several
hosts share one PostgreSQL registry; HOST is as `list --all-hosts` shows it.
at night: `agent-watchdog list` (which agents), `why NAME` (what happened, with evidence), `hold NAME --for 2h` (keep
it from being killed), `kill NAME` (kill its whole process tree, then clean up). `VERB --help` says more.
exit status: 0 done or already so, 1 failed for some target, 64 usage, 69 no daemon, 74 output cannot be written,
75 try again, 77 no permission, 78 configuration.
"""
# Modules with `add_verbs`, in the order of the help.
GROUPS = (
    *("register", "list", "status", "events", "kill", "reap", "restore"),
    *("install_hooks", "mcp", "reload", "doctor"),
)
_MODULES = [import_module(f"watchdog.cli.{group}") for group in GROUPS]


class Parser(argparse.ArgumentParser):
    """argparse that exits with 64 (EX_USAGE) instead of 2."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where to look."""
        unknown = re.match(r"argument VERB: invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL)
        if unknown is not None:
            close = difflib.get_close_matches(unknown[1], re.findall(r"[a-z][a-z-]*", unknown[2]), 1)
            message = f"there is no verb {unknown[1]!r}" + (f"; did you mean {close[0]!r}?" if close else "")
        warn(f"{clean(message)}\nusage: see {self.prog} --help")
        raise SystemExit(64)


class Version(argparse.Action):
    """`--version`, which looks the version up only then: that took a third of each verb's start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print it, and end."""
        from importlib import metadata  # lazily: only here

        print(f"{parser.prog} {metadata.version('agent-watchdogd')}")
        parser.exit()


def build() -> argparse.ArgumentParser:
    """The parser of everything."""
    parser = Parser(
        prog="agent-watchdog",
        description="Watch AI coding agents, see why one is stalled, kill its whole process tree.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--socket", metavar="PATH", help="the daemon's control socket (default: found by itself)")
    parser.add_argument("--version", action=Version, nargs=0, help="show program's version number and exit")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True, parser_class=Parser)
    verbs.add_parser("run", help="start a program as a watched agent: run --name N -- CMD", add_help=False)
    verbs.add_parser("beat", help="report progress from within an agent", add_help=False)
    for module in _MODULES:
        module.add_verbs(verbs)
    return parser


def main(argv: list[str]) -> int:
    """Run one verb; return the exit status. `argv` is without the program's name."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # all imports are done: from here on Ctrl-C may clean up
            signal.signal(signal.SIGINT, signal.default_int_handler)
        arguments, rest = build().parse_known_args(argv)
        if hasattr(arguments, "targets") and not any(word.startswith("-") for word in rest):
            # `kill a --force b`: argparse takes only one consecutive group.
            arguments.targets, rest = arguments.targets + rest, []
        if rest:  # reported here, as argparse would refer to the help without this verb's options
            warn(f"unrecognized arguments: {clean(' '.join(rest))}\nusage: see agent-watchdog {arguments.verb} --help")
            return 64
        call: Callable[[argparse.Namespace], int] | None = getattr(arguments, "call", None)
        if call is None:
            warn(f"only --socket PATH may precede {arguments.verb}")
            return 64
        status = call(arguments)
        sys.stdout.flush()
        return status
    except SystemExit as end:  # argparse: --help, --version, usage
        return end.code if isinstance(end.code, int) else 64
    except WatchdogError as error:
        for line in str(error).splitlines():
            warn(clean(line))
        if error.exit_code == DaemonUnreachable.exit_code:
            warn("what to do: agent-watchdog doctor")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `| head` has read enough; nothing may be flushed into the closed pipe at exit.
        _drop_stdout()
        return 0
    except OSError as error:  # a full disk below stdout, a current directory that is gone
        gone = nobody_reads()  # a terminal that was closed
        _drop_stdout()
        if gone:
            return 0
        warn(clean(error))
        return 74


def _drop_stdout() -> None:
    """Redirect stdout so that its remaining buffer causes no error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
