"""Identifies the directory at a path, as opposed to a later one at the same path.

A path is free again as soon as its directory is gone: `git worktree remove wt; git worktree add wt` puts another
agent's tree where a dead agent's was. So the directory is recorded while the agent lives, and compared before anything
is done to it. If it was never recorded, a directory that was made after the agent can last have used it is not the
agent's.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Made = tuple[int, int | None]  # a directory: its inode and birth time (ns since the epoch; None: not known)


@dataclass(frozen=True, slots=True)
class Site:
    """A directory; for a linked worktree also git's entry `<common>/worktrees/NAME` and the branch of HEAD.

    `since`: when the newest of these was made or put there, if known (seconds since the epoch).
    """

    directory: Made
    entry: Made | None = None
    branch: str | None = None
    since: float = 0.0
    common: str | None = None  # the repository's common dir, which holds git's entry
    above: Made | None = None  # its parent directory: a different one while a disk is not mounted


@dataclass(frozen=True, slots=True)
class KnownSite:
    """What is known of an agent's directory. `until`: latest time it can have been made, if it was never seen (0:
    unknown).

    `watched`: the daemon observed the agent's end, so only the agent can have changed the branch before that.
    """

    site: Site | None = None
    until: float = 0.0
    watched: bool = True


def stranger(known: KnownSite, now: Site) -> str | None:
    """Why the directory there now is not the agent's, as text; None: there is no sign of that."""
    then = known.site
    if then is None:
        late = known.until > 0 and now.since > known.until
        return "it was made after the agent can last have used it, so it is not the agent's" if late else None
    if not _same(then.directory, now.directory):
        return "another directory is there than while the agent lived, so it is not the agent's"
    if then.entry is not None and (now.entry is None or not _same(then.entry, now.entry)):
        return "git has another entry of it than while the agent lived, so it is not the agent's worktree"
    if not known.watched and then.branch != now.branch:
        return f"it is on {_short(now.branch)}, and was on {_short(then.branch)} when it was last seen as the agent's"
    return None


def _same(one: Made, other: Made) -> bool:
    return one[0] == other[0] and (one[1] is None or other[1] is None or one[1] == other[1])


def _short(branch: str | None) -> str:
    return "no branch" if branch is None else branch.removeprefix("refs/heads/")


def site_json(site: Site) -> dict[str, Any]:
    """JSON that `site_of` reads."""
    return asdict(site)


def site_of(stored: Mapping[str, Any]) -> Site:
    """A site from its JSON. Raises KeyError, TypeError, ValueError: it may come from a helper, or an edited row."""
    entry, branch = stored.get("entry"), stored.get("branch")
    return Site(
        _made(stored["directory"]),
        None if entry is None else _made(entry),
        None if branch is None else str(branch)[:1024],
        float(stored.get("since", 0.0)),
        None if stored.get("common") is None else str(stored["common"])[:4096],
        None if stored.get("above") is None else _made(stored["above"]),
    )


def is_same(one: Made, other: Made) -> bool:
    """Whether both are the same directory, as far as the file system tells."""
    return _same(one, other)


def _made(stored: Any) -> Made:
    inode, at = stored
    if type(inode) is not int or not (at is None or type(at) is int):
        raise ValueError(f"{stored!r} names no directory")
    return inode, at


UNKNOWN = KnownSite()


def known_of(stored: Mapping[str, Any] | None) -> KnownSite:
    """The known site from a hook's JSON; `UNKNOWN` if it has none. Raises as `site_of`."""
    if stored is None:
        return UNKNOWN
    site = stored.get("site")
    return KnownSite(
        None if site is None else site_of(site), float(stored.get("until", 0.0)), stored.get("watched") is not False
    )


def known_json(known: KnownSite) -> dict[str, Any]:
    """JSON that `known_of` reads."""
    return asdict(known)
