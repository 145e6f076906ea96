"""Programs that one session starts and that all of the user's sessions share: the work is theirs, the process is not.

Codex' TUI starts an app server (`codex app-server --listen unix://…`) that does the work of every session and outlives
its starter; `claude --bg` starts a service below which background sessions run, each a process of its own. Either was
started by the first agent, carries that agent's marker and may sit in its cgroup; it belongs to no agent's tree.

Imported by `beat --from`, at each event of a vendor hook: imports nothing that costs time.
"""

from watchdog.core.vendors import runs_as

# What such a service is called.
CODEX = "codex app-server"
CLAUDE = "claude's background service"
PARTS = "a part of codex' or claude's service"  # an updater, terminals, processes for sessions to come
_SHARED = ("unix:", "ws:")  # what the app server listens on; with stdio it is the one client's that started it
_PLACE = ("-C", "--cd")
_OWN = "--no-daemon"  # has this session do its work in its own process
_CLIENTS = frozenset({"resume", "fork"})  # commands of the TUI; what else is no option is a prompt, or none of it
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
    """The shared service that a process is a part of; None: it is none.

    `argv` holds its first words, `executable` what /proc/PID/exe names.
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
    """Whether hooks of several sessions run below that one process.

    Not below Claude Code's: its service has a process for each session, of which a spare one keeps its words.
    """
    return service_of(argv, executable) == CODEX


def may_be_client(argv: list[str], executable: str) -> bool:
    """Whether a process may be a client of Codex' app server: the TUI, or what connects another machine's."""
    if runs_as("codex", argv, executable) != "native" or service_of(argv, executable) is not None:
        return False
    return shares_service(argv)


def shares_service(argv: list[str]) -> bool:
    """Whether a command of Codex has its sessions in the shared app server, as far as its words tell."""
    if _OWN in argv:
        return False
    words = _words(argv)
    return not words or (words[0] not in _NO_CLIENTS and (words[0] != "app-server" or words[1:2] == ["proxy"]))


def named_in(argv: list[str]) -> frozenset[str]:
    """The sessions that a client was asked to resume."""
    words = _words(argv)
    return frozenset(words[1:2]) if words[:1] and words[0] in _CLIENTS else frozenset()


def directory_in(argv: list[str]) -> str | None:
    """Where a client was told to have its sessions work; it stays in its own directory itself."""
    for place, word in enumerate(argv[1:], 2):
        after = "".join(argv[place : place + 1])
        for option in _PLACE:
            if word == option:
                return after or None
            if word.startswith(f"{option}="):
                return word.removeprefix(f"{option}=") or None
    return None


def works_anywhere(argv: list[str]) -> bool:
    """Whether a client may begin sessions in any directory: for one on another machine, or for all of a user's."""
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
    """A command's words without its program, its options and their values."""
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
