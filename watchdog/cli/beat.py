"""`agent-watchdog beat`: one heartbeat, at about the cost of an interpreter start.

It is called by hooks and wrappers that must not fail because of us: it always exits 0, waits at most half a second, and
prints errors only for a person (stderr is a terminal, or AGENT_WATCHDOG_DEBUG is set). An invalid call is still a sign
of life, and is sent as a plain beat: a typo must not get an agent killed.
"""

import os
import sys

from watchdog.cli.flags import one, read_flags
from watchdog.core.names import is_socket_of
from watchdog.core.sd_notify import MAX_TEXT, STATES, Words, printable, words_of
from watchdog.errors import BadRequest, WatchdogError

HELP = """\
usage: agent-watchdog beat [options]
report that an agent makes progress; without options: "I am working"

  --agent A           for another agent than the one in whose environment this runs
  --state S           working, idle, waiting (for a human), blocked or done
  --progress N        a number that grows with the work
  --silent-for D      expect no beat for that long (90s, 15m, 2h), even if beats come in between; 0s ends this
  --tool NAME         a tool is running ("": it has finished)
  --tool-limit D      and may take that long
  --note TEXT         shown by `list` and `why`
  --from VENDOR       for a vendor hook: the event is read on stdin (claude, codex, gemini, opencode)

Always exits 0. Errors are shown on a terminal, or with AGENT_WATCHDOG_DEBUG=1.
"""
_TAKES = {
    "--agent": True,
    "--state": True,
    "--progress": True,
    "--silent-for": True,
    "--tool": True,
    "--tool-limit": True,
    "--note": True,
    "--from": True,
    "--socket": True,
    "--help": False,
    "-h": False,
}
_WAIT_SECONDS = 0.5  # 100 simultaneous senders on a queue of 10: with 0.05 s 89 failed, with 0.5 s none


def main(arguments: list[str], socket_path: str | None = None) -> int:
    """Send one beat; always 0."""
    try:
        _beat(arguments, socket_path)
    except (WatchdogError, OSError, ValueError) as error:
        complain(error)
    return 0


def _beat(arguments: list[str], socket_path: str | None) -> None:
    agent = None
    try:
        values, rest = read_flags(arguments, _TAKES)
        if "--help" in values or "-h" in values:
            sys.stdout.write(HELP)
            return
        if "--from" in values:
            from watchdog.cli import beat_from  # lazily: other beats do not need it

            beat_from.beat(one(values, "--from") or "", one(values, "--socket") or socket_path)
            return
        if rest:
            raise BadRequest(f"unexpected word {rest[0]!r}")
        agent = one(values, "--agent")
        socket_path = one(values, "--socket") or socket_path
        fields = fields_of(values)
    except BadRequest as error:
        complain(error)
        fields = {"WATCHDOG": "1"}
    own = os.environ.get("AGENT_WATCHDOG_ID", "")
    notify = os.environ.get("NOTIFY_SOCKET", "")
    # A socket of another service that we merely inherited gets no beat of our agent.
    if agent is None and notify and (not own or is_socket_of(notify, own)) and told(notify, fields):
        return
    _post(agent or own, fields, socket_path)


def fields_of(values: dict[str, list[str]]) -> dict[str, str]:
    """The sd_notify fields for the flags. Raises BadRequest, naming the flag."""
    from watchdog.core.durations import seconds_of  # lazily: most beats have no duration

    fields = {"WATCHDOG": "1"}
    state = one(values, "--state")
    if state is not None:
        if state not in STATES:
            raise BadRequest(f"--state {state}: must be one of {', '.join(STATES)}")
        fields["X_AGENT_STATE"] = state
    progress = one(values, "--progress")
    if progress is not None:
        fields["X_AGENT_PROGRESS"] = progress
        if "progress" not in (words_of(fields, from_main=False) or {}):
            raise BadRequest(f"--progress {progress}: is not a number")
    for flag, key in (("--silent-for", "X_AGENT_SILENT_FOR"), ("--tool-limit", "X_AGENT_TOOL_LIMIT")):
        text = one(values, flag)
        if text is not None:
            fields[key] = f"{seconds_of(text):g}" if seconds_of(text) < 1e6 else f"{seconds_of(text):.0f}"
    for flag, key in (("--tool", "X_AGENT_TOOL"), ("--note", "X_AGENT_NOTE")):
        text = one(values, flag)
        if text is not None:
            fields[key] = printable(text.encode("utf-8", "replace").decode()[:MAX_TEXT])
    return fields


def told(path: str, fields: dict[str, str], wait: float = _WAIT_SECONDS) -> bool:
    """Send one datagram to the agent's notify socket. False: no process listens, so use the daemon's socket."""
    from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_DGRAM, socket  # `socket` itself would cost 1 ms more

    if path[0] not in "/@":
        return False
    sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC)
    try:
        sender.settimeout(wait)
        # Connect, or poll() ignores the receiver's queue and the wait spins (unix_dgram_poll in Linux).
        sender.connect("\0" + path[1:] if path[0] == "@" else path)
        sender.send("\n".join(f"{key}={value}" for key, value in fields.items()).encode())
    except TimeoutError:
        raise BadRequest(f"the beat was refused: {path} has been full for {wait} s") from None
    except OSError:
        return False
    finally:
        sender.close()
    return True


def _post(agent: str, fields: dict[str, str], socket_path: str | None) -> None:
    from watchdog.client.client import request
    from watchdog.client.sockets import find_socket  # lazily: a datagram does not need it

    if not agent:
        raise BadRequest("no agent: not started by `agent-watchdog run`, and no --agent given")
    if "/" in agent or not agent.isascii() or not agent.isprintable() or " " in agent:
        raise BadRequest(f"--agent {agent!r}: is neither a name nor an id")
    words: Words = words_of(fields, from_main=False) or {}
    status, answer = request(
        "POST", f"/v1/agents/{agent}/beat", words, socket_path=find_socket(socket_path), timeout=_WAIT_SECONDS * 2
    )
    if status >= 300:
        raise BadRequest(f"the beat was refused: {answer.get('message', status)}")


def complain(error: Exception) -> None:
    """Print one line for a person, and nothing for a hook's runner."""
    try:
        if os.environ.get("AGENT_WATCHDOG_DEBUG") or os.isatty(2):
            os.write(2, f"agent-watchdog beat: {error}\n".encode("utf-8", "replace"))
    except OSError:
        pass  # stderr is closed
