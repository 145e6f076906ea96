"""Removes git's entry of a worktree whose directory was deleted, as its branch would count as checked out for ever.

Only that entry is removed (`git.entries`), and only if it is the one that the agent's tree had (`core.sites`), the
parent directory is still the same (an unmounted disk is not a deletion), it is not locked, and it alone holds nothing:
what was committed there is in the branch, which stays, or in another ref.
"""

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from watchdog.core.sites import KnownSite, Made, is_same
from watchdog.errors import PathRefused
from watchdog.owner import paths, sites, trash
from watchdog.owner.git import entries, worktree_locks, worktree_trash, worktrees
from watchdog.owner.git.git import Git, checkout_of

SECONDS = 60.0  # for all git runs together; without a tree to read there are few


@dataclass(frozen=True, slots=True)
class MissingWorktree:
    """An entry that may be removed."""

    path: str
    common: str
    place: str  # `<common>/worktrees/NAME`
    made: Made
    branch: str | None

    def drop(self, agent_id: str) -> str:
        """Remove it from git's list and delete it; return a description.

        If this is killed, the reaper finishes the deletion of the container. Raises as `entries.take_out` and
        `worktree_trash.open_bin`.
        """
        with ExitStack() as stack:
            trash_bin = worktree_trash.open_bin(stack, self.common)
            name = worktree_trash.leaving(agent_id)
            unlocked = entries.take_out(
                self.place, self.path, trash_bin, name, lambda entry: is_same(self.made, sites.made(entry))
            )
            trash.remove_container(trash_bin, name, trash.Freed())
        stays = "it had no branch" if self.branch is None else f"its branch {worktrees.short(self.branch)} stays"
        return f"{self.path} was deleted; git's entry of it is dropped; {stays}" + (unlocked and f"; {unlocked}")


def proved(known: KnownSite, parent: int, path: str) -> MissingWorktree | None:
    """The entry, if nothing is lost with it; None if there is none, or nothing is known of it.

    `parent`: the open parent directory. Raises PathRefused with the reason to keep it; OSError, OwnerCallFailed.
    """
    site = known.site
    if site is None or site.entry is None or site.common is None or site.above is None:
        return None
    place = _entry(site.common, path, site.entry)
    if place is None:
        return None
    if not is_same(site.above, sites.made(parent)):
        words = "the directory above it is another than while the agent lived (a disk that is not mounted?)"
        raise PathRefused("not_there", f"it is not there, and {words}; git's entry of it stays")
    git, own = Git(site.common, SECONDS, git_dir=site.common), Git(site.common, SECONDS, git_dir=place)
    listed = next((one for one in worktrees.listed(git) if one.get("worktree") == path), None)
    if listed is None:
        return None
    head = listed.get("HEAD", "0")
    tree = worktrees.Linked(path, site.common, place, listed.get("branch"), head if set(head) != {"0"} else None)
    if reasons := _reasons(git, own, tree):
        raise PathRefused("entry_stays", f"it was deleted, and git's entry of it stays: {'; '.join(reasons)}")
    return MissingWorktree(path, site.common, place, site.entry, tree.branch)


def _entry(common: str, path: str, made: tuple[int, int | None]) -> str | None:
    """The entry with that identity that points to `path`."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(os.path.join(common, "worktrees")):
            place = os.path.join(common, "worktrees", name)
            with suppress(FileNotFoundError, PathRefused):
                directory = paths.open_directory(place)
                try:
                    if is_same(made, sites.made(directory)) and checkout_of(place) == path:
                        return place
                finally:
                    os.close(directory)
    return None


def _reasons(git: Git, own: Git, tree: worktrees.Linked) -> list[str]:
    """Reasons to keep it."""
    found = []
    with suppress(FileNotFoundError):
        if not worktree_locks.ended_maker(lock := _lock(tree.git_dir), tree.git_dir):
            found.append(f"the worktree is locked{': ' + lock if lock else ''}")
    if os.path.lexists(os.path.join(tree.git_dir, "modules")):
        found.append("it has submodules")
    middle = worktrees.UNFINISHED | worktrees.AT_WORK
    found += [words for name, words in middle.items() if os.path.lexists(os.path.join(tree.git_dir, name))]
    if tree.head is None:
        found.append("its branch has no commit, or is gone")
        return found
    if tree.branch is None and not worktrees.holders(git, tree.head, None):
        found.append("HEAD is detached, and nothing else holds its commit")
    if own.run("diff-index", "--cached", "--name-only", "--diff-filter=d", "HEAD", "--"):
        found.append("its index holds what was never committed")
    return found + worktrees.held_by_its_log(own, tree)


def _lock(place: str) -> str:
    """The reason of the lock. Raises FileNotFoundError."""
    return Path(place, "locked").read_text("utf-8", "replace").strip()
