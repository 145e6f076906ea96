"""Which agent owns a session of a shared service: the client that began it, if only one can have.

Pure. A hook of such a session runs below the service, which does not name the client; only the existing client
processes are known. A session that several of them may have begun belongs to none: a beat for the wrong agent would
hide a stall, and its kill would kill another agent's commands.
"""

from collections.abc import Iterable
from dataclasses import dataclass

SESSION = "session"  # kind of an agent's entry for such a session
SLACK = 1.0  # seconds: a process's start is known to a tick, by a clock that may be slewed
_VERSION = 7  # of a UUID whose first 48 bits are its creation time in milliseconds (RFC 9562)


@dataclass(frozen=True, slots=True)
class Session:
    """A session as its hook reported it. `fresh`: it begins now and was not resumed."""

    id: str
    directory: str
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Client:
    """A process that may have begun the session. Times are epoch seconds."""

    agent: str | None  # the agent whose tree it is in; None: it is not watched
    began: float
    directory: str | None = None  # None: on another machine, or unknown
    named: frozenset[str] = frozenset()  # sessions that it was asked to resume


@dataclass(frozen=True, slots=True)
class Whose:
    """The owner of a session. `perhaps`: the agents that may own it, if that is not known."""

    agent: str | None = None
    perhaps: tuple[str, ...] = ()
    why: str = "no client of it is there"


def whose(session: Session, clients: Iterable[Client]) -> Whose:
    """Return the owner.

    1. The client that was asked to resume it by its id.
    2. Otherwise a client in the session's directory; a fresh session also needs a client that was there already.
    """
    clients = list(clients)
    named = [one for one in clients if session.id in one.named]
    if named:
        return _of(named, "its client was asked to resume it")
    made = made_at(session.id) if session.fresh else None
    fit = [one for one in clients if one.directory in (None, session.directory)]
    fit = [one for one in fit if made is None or one.began <= made + SLACK]
    return _of(fit, "no other client can have begun it")


def _of(clients: list[Client], why: str) -> Whose:
    agents = {one.agent for one in clients}
    if not agents:
        return Whose()
    known = tuple(sorted(one for one in agents if one is not None))
    if len(agents) == 1:
        return Whose(known[0], why=why) if known else Whose(why="its client is not watched")
    return Whose(perhaps=known, why=f"{len(clients)} clients may have begun it")


def made_at(session: str) -> float | None:
    """When an id was created, in epoch seconds; None: it does not say."""
    digits = session.replace("-", "")
    if len(digits) != 32 or not digits.isascii() or not digits.isalnum() or digits[12] != str(_VERSION):
        return None
    try:
        return int(digits[:12], 16) / 1000
    except ValueError:
        return None


def shared_words(services: Iterable[str], perhaps: Iterable[str]) -> str:
    """The text about shared sessions in `why` and in the outcome of a kill; empty: nothing to say.

    `services`: those that work for its sessions; `perhaps`: agents for sessions that may be its own.
    """
    said = []
    if where := ", ".join(sorted(set(services))):
        said.append(f"its sessions live in {where}, which others share: it is not killed with this agent")
    if names := ", ".join(sorted(perhaps)):
        said.append(f"whether {names} is its own is not known: not killed with it, kill it by that name")
    return "; ".join(said)
