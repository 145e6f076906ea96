"""Shared services: programs that one session starts and all of the user's sessions use.

The work is the sessions', the process is not. Codex' TUI starts an app server (`codex app-server --listen unix://…`)
that does the work of all sessions and outlives its starter; `claude --bg` starts a service below which background
sessions run, each in a process of its own. Such a service carries the marker of the agent that happened to start it and
may be in that agent's cgroup, but belongs to no agent's tree.

Imported by `beat --from` at each event of a vendor hook, so it imports nothing that costs time.
"""

from watchdog.core.vendors import runs_as

# The names of such services.
CODEX = "codex app-server"
CLAUDE = "claude's background service"
PARTS = "a part of codex' or claude's service"  # an updater, terminals, processes for sessions to come
_SHARED = ("unix:", "ws:")  # addresses of a shared app server; with stdio it belongs to the client that started it
_PLACE = ("-C", "--cd")
_OWN = "--no-daemon"  # keeps this session's work in its own process
_CLIENTS = frozenset({"resume", "fork"})  # commands of the TUI; any other word is a prompt or a command that is no TUI
_NO_CLIENTS = frozenset(
    {"exec", "e", "review", "login", "logout", "mcp", "mcp-server", "completion", "sandbox", "debug", "apply", "a"}
    | {"cloud", "features", "help", "update", "doctor", "plugin", "archive", "unarchive", "delete", "queue"}
    | {"exec-server", "remote-control", "migrate-rollouts", "migrate-nfs-db"}
)
_TAKES = frozenset({"-c", "--config", "-m", "--model", "-p", "--profile", "-s", "--sandbox", "-C", "--cd", "-i"})
_TAKES_TOO = frozenset(
    {"--image", "-a", "--ask-for-approval", "--add-dir", "--enable", "--disable", "--local-provider"}
)


def service_of(argv: list[str], executable: str) -> str | None:
    """The shared service that a process is a part of; None: it is not.

    `argv`: the start of its command line; `executable`: the target of /proc/PID/exe.
    """
    if runs_as("codex", argv, executable) is not None:
        if _words(argv)[:3] == ["app-server", "daemon", "pid-update-loop"]:
            return PARTS
        return CODEX if _serves(argv) else None
    if runs_as("claude", argv, executable) is not None:
        if argv[1:3] == ["daemon", "run"]:
            return CLAUDE
        return PARTS if argv[1:2] in (["--bg-pty-host"], ["--bg-spare"]) else None
    return None


def works_for_many(argv: list[str], executable: str) -> bool:
    """Whether one such process runs the hooks of several sessions.

    Claude Code's service does not: it has a process per session (a spare one that becomes a session keeps its argv).
    """
    return service_of(argv, executable) == CODEX


def may_be_client(argv: list[str], executable: str) -> bool:
    """Whether a process may be a client of Codex' app server: the TUI, or a proxy for one on another machine."""
    if runs_as("codex", argv, executable) != "native" or service_of(argv, executable) is not None:
        return False
    return shares_service(argv)


def shares_service(argv: list[str]) -> bool:
    """Whether a Codex command has its sessions in the shared app server, according to its command line."""
    if _OWN in argv:
        return False
    words = _words(argv)
    return not words or (words[0] not in _NO_CLIENTS and (words[0] != "app-server" or words[1:2] == ["proxy"]))


def named_in(argv: list[str]) -> frozenset[str]:
    """The sessions that a client was asked to resume."""
    words = _words(argv)
    return frozenset(words[1:2]) if words[:1] and words[0] in _CLIENTS else frozenset()


def directory_in(argv: list[str]) -> str | None:
    """The working directory that a client was given for its sessions; its own cwd differs."""
    for place, word in enumerate(argv[1:], 2):
        after = "".join(argv[place : place + 1])
        for option in _PLACE:
            if word == option:
                return after or None
            if word.startswith(f"{option}="):
                return word.removeprefix(f"{option}=") or None
    return None


def works_anywhere(argv: list[str]) -> bool:
    """Whether a client may start sessions in any directory: a proxy for another machine, or one for all agents."""
    return _words(argv)[:2] == ["app-server", "proxy"] or _words(argv)[:1] == ["agents"]


def _serves(argv: list[str]) -> bool:
    words = _words(argv)
    if words[:1] != ["app-server"]:
        return False
    said = zip(argv, [*argv[1:], ""], strict=True)
    listens = [after if word == "--listen" else word.removeprefix("--listen=") for word, after in said]
    return any(
        address.startswith(_SHARED)
        for word, address in zip(argv, listens, strict=True)
        if word == "--listen" or word.startswith("--listen=")
    )


def _words(argv: list[str]) -> list[str]:
    """A command's words without the program, options and option values."""
    found, skip = [], True  # the first is the program
    if argv and argv[0].rpartition("/")[2] in ("node", "nodejs", "bun", "deno"):
        argv = argv[1:]
    for word in argv:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = word in _TAKES or word in _TAKES_TOO
        else:
            found.append(word)
    return found
