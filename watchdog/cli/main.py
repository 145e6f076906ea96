"""Entry of `agent-watchdog`: `beat` and `run` before anything heavy is imported, the rest by `cli.verbs`."""

import sys


def main(argv: list[str] | None = None) -> int:
    """Run one verb; the exit status, as the README's table has it. `argv` is without the program's name."""
    arguments = sys.argv[1:] if argv is None else argv
    socket_path, rest = _leading_socket(arguments)
    verb = rest[0] if rest else ""
    if verb == "beat":
        from watchdog.cli import beat  # lazily: fast path

        return beat.main(rest[1:], socket_path)
    if verb == "run":
        from watchdog.cli import run  # lazily: fast path

        return run.main(rest[1:], socket_path)
    from watchdog.cli import verbs  # lazily: brings argparse

    return verbs.main(arguments)


def _leading_socket(arguments: list[str]) -> tuple[str | None, list[str]]:
    """`--socket PATH` before the verb; whatever else stands there is left for the full parser to name."""
    if len(arguments) >= 2 and arguments[0] == "--socket":
        return arguments[1], arguments[2:]
    if arguments and arguments[0].startswith("--socket="):
        return arguments[0].partition("=")[2], arguments[1:]
    return None, arguments
