"""The options of `agent-watchdog run`. Parsed by hand: argparse would stay in memory for the agent's lifetime."""

import os

from watchdog.cli.flags import Values, one, read_flags
from watchdog.core.durations import seconds_of
from watchdog.core.names import name_for, name_problem
from watchdog.core.sd_notify import printable
from watchdog.errors import BadRequest

HELP = """\
usage: agent-watchdog run [options] -- CMD [ARG...]
start a program as a watched agent, and exit as it exits

  --name N            the agent's name (default: the program's name and a suffix)
  --replace           kill your living agent of that name first, and start when it is proved dead
  --tag T             may be given several times
  --type T            claude, codex, ...: selects the [[policy]]
  --task ID           the task that it works on
  --parent AGENT      default: the agent in whose environment this runs
  --stall-after D     promise a beat at least that often (90s, 15m, 2h); without it silence counts from the first beat
  --beat-every D      the interval at which it sends beats
  --ttl D             kill it after that long
  --worktree DIR      the git worktree to clean up afterwards (CMD still starts in the current directory)
  --temp-dir DIR      the directory to remove afterwards; `auto` makes one and sets TMPDIR
  --beat-file FILE    a file whose change is a beat
  --log FILE          its log: growth is a sign of work, not a beat
  --transcript FILE   its transcript, likewise
  --socket PATH       the daemon's control socket
"""
_TAKES = {
    "--name": True,
    "--replace": False,
    "--tag": True,
    "--type": True,
    "--task": True,
    "--parent": True,
    "--stall-after": True,
    "--beat-every": True,
    "--ttl": True,
    "--worktree": True,
    "--temp-dir": True,
    "--beat-file": True,
    "--log": True,
    "--transcript": True,
    "--socket": True,
    "--help": False,
    "-h": False,
}


class Options:
    """One validated call of `run`. Durations in seconds, paths absolute; None means "not said"."""

    def __init__(self, values: Values, command: list[str], agent_id: str) -> None:
        if not command:
            raise BadRequest("no command given; write it after --, as in: run --name alpha -- ./agent.sh")
        if not command[0]:
            raise BadRequest("the command is empty")
        for flag, given in values.items():
            if flag != "--socket" and not all(map(is_utf8, given)):
                raise BadRequest(f"{flag}: is not UTF-8; the daemon's registry holds text only")
        self.command = command
        self.agent_id = agent_id
        self.name = one(values, "--name") or name_for(command[0], agent_id[:4])
        if "--name" in values:
            self.name = values["--name"][0]
        problem = name_problem(self.name)
        if problem is not None:
            raise BadRequest(f"--name {self.name!r} {problem}")
        self.replace = "--replace" in values
        self.tags = values.get("--tag", [])
        self.type = one(values, "--type")
        self.task = one(values, "--task")
        self.parent = one(values, "--parent") or os.environ.get("AGENT_WATCHDOG_ID") or None
        self.stall_after = _duration(values, "--stall-after")
        self.beat_every = _duration(values, "--beat-every")
        self.ttl = _duration(values, "--ttl")
        self.worktree = _path(values, "--worktree")
        self.auto_temp_dir = one(values, "--temp-dir") == "auto"
        self.temp_dir = None if self.auto_temp_dir else _path(values, "--temp-dir")
        self.beat_file = _path(values, "--beat-file")
        self.log = _path(values, "--log")
        self.transcript = _path(values, "--transcript")
        self.socket = one(values, "--socket")

    def registration(self, notify_socket: str | None) -> dict[str, object]:
        """The body of `POST /v1/agents`, without the pid."""
        said: dict[str, object] = {
            "agent_id": self.agent_id,
            "name": self.name,
            "source": "run",
            "command": printable(os.path.basename(self.command[0]))[:64],
            "notify_socket": notify_socket,
            "replace": self.replace or None,
            "type": self.type,
            "tags": self.tags or None,
            "task": self.task,
            "parent": self.parent,
            "stall_after_seconds": self.stall_after,
            "interval_seconds": self.beat_every,
            "ttl_seconds": self.ttl,
            "worktree": self.worktree,
            "temp_dir": self.temp_dir,
            "beat_file": self.beat_file,
            "log": self.log,
            "transcript": self.transcript,
        }
        return {key: value for key, value in said.items() if value is not None}


def parse_options(arguments: list[str], agent_id: str) -> Options | None:
    """The options of one call, or None if help was requested. Raises BadRequest, naming the error."""
    values, command = read_flags(arguments, _TAKES)
    if "--help" in values or "-h" in values:
        return None
    return Options(values, command, agent_id)


def _duration(values: Values, flag: str) -> float | None:
    text = one(values, flag)
    if text is None:
        return None
    try:
        seconds = seconds_of(text)
    except BadRequest as error:
        raise BadRequest(f"{flag}: {error}") from None
    if not seconds:
        raise BadRequest(f"{flag}: must be more than 0")
    return seconds


def _path(values: Values, flag: str) -> str | None:
    text = one(values, flag)
    if text == "":
        raise BadRequest(f"{flag} needs a path")
    if text is None:
        return None
    try:
        path = os.path.realpath(text)  # links are resolved now: later none is followed
    except FileNotFoundError:
        raise BadRequest(f"{flag}: {text}: the current directory is gone; give an absolute path") from None
    if not is_utf8(path):
        raise BadRequest(f"{flag}: its real path is not UTF-8; the daemon's registry holds text only")
    return path


def is_utf8(text: str) -> bool:
    """Whether an argument was UTF-8: Python represents other bytes as lone surrogates, which no registry accepts."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
