"""Entry point of `agent-watchdog`: runs `beat` and `run` before anything heavy is imported, the rest by `cli.verbs`.

Tests: tests/cli/test_verbs.py, tests/cli/test_beat.py, tests/cli/test_everyday.py.
"""

import os
import sys

from watchdog.cli.run.wrapper_signals import end_at_interrupt


def main(argv: list[str] | None = None) -> int:
    """Run one verb; return the exit status (agent-watchdog(1)). `argv` is without the program's name."""
    end_at_interrupt()
    arguments = sys.argv[1:] if argv is None else argv
    socket_path, rest = _leading_socket(arguments)
    rest = _meant(rest)
    verb = rest[0] if rest else ""
    if verb == "beat":
        from watchdog.cli import beat  # lazily: fast path

        return beat.main(rest[1:], socket_path)
    if verb == "run":
        return _run(rest[1:], socket_path)
    from watchdog.cli import verbs  # lazily: brings argparse

    return verbs.main(rest if socket_path is None else ["--socket", socket_path, *rest])


def _meant(words: list[str]) -> list[str]:
    """Accept other programs' names of verbs: `ls` and `ps` mean `list`, `help` --help, `help VERB` that verb's help."""
    first, others = (words[0], words[1:]) if words else ("", [])
    if first in ("ls", "ps"):
        return ["list", *others]
    if first == "help":
        return [*others[:1], "--help"]
    return words


def _run(arguments: list[str], socket_path: str | None) -> int:
    """Replace this process by an interpreter for `run`, without `site` and what the console script imports.

    Measured on Python 3.11: 9.4 instead of 10.4 MB for the agent's lifetime, at a cost of 10 ms.
    """
    if socket_path is not None:
        arguments = ["--socket", socket_path, *arguments]
    start = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run", "start.py")
    options = ["-I", "-S", "-B"] if sys.dont_write_bytecode else ["-I", "-S"]
    if sys.executable:
        try:  # noqa: SIM105  contextlib costs memory
            os.execv(sys.executable, [sys.executable, *options, start, *arguments])  # noqa: S606  ourselves
        except OSError:
            pass  # the interpreter cannot be executed by its path: continue here
    from watchdog.cli.run import wrapper  # lazily: only here

    return wrapper.main(arguments)


def _leading_socket(arguments: list[str]) -> tuple[str | None, list[str]]:
    """`--socket PATH` before the verb; the full parser reports anything else there."""
    if len(arguments) >= 2 and arguments[0] == "--socket":
        return arguments[1], arguments[2:]
    if arguments and arguments[0].startswith("--socket="):
        return arguments[0].partition("=")[2], arguments[1:]
    return None, arguments
