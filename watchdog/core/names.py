"""Names of agents. Imported by the resident `run`, so it imports nothing."""

RESERVED = frozenset({"stalled", "orphans", "all"})  # targets with a meaning of their own
_ALLOWED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
MAX_LENGTH = 64


def name_problem(name: str) -> str | None:
    """Why an agent cannot have that name, as the rest of a sentence that begins with the name; None: it can."""
    if not name or len(name) > MAX_LENGTH:
        return f"must have 1 to {MAX_LENGTH} characters"
    if not _ALLOWED.issuperset(name):
        return "may hold only letters, digits and . _ -"
    if name.startswith("-"):
        return "begins with -; that would be taken for an option"
    if name.isdigit():
        return "is all digits; that would be taken for a pid"
    if name in RESERVED:
        return "is reserved: it is a kind of target"
    return None


def is_socket_of(path: str, agent_id: str) -> bool:
    """Whether a notify socket is that agent's: the daemon names its sockets by the id, `run` by the start of the id."""
    name = path.rpartition("/")[2]
    return name == agent_id or name.startswith(f"run-{agent_id[:8]}")


def name_for(program: str, suffix: str) -> str:
    """A name for an agent without one: the program's name and a suffix."""
    base = "".join(c if c in _ALLOWED else "-" for c in program.rpartition("/")[2]).lstrip(
        "-"
    )  # `-bash`: a login shell
    return f"{base[: MAX_LENGTH - len(suffix) - 1] or 'agent'}-{suffix}"
