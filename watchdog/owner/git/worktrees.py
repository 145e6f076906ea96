"""What git and the disk report about one linked worktree, and all reasons to keep it.

Read-only. If anything cannot be determined it raises (OwnerCallFailed, OSError), and the caller keeps the tree.

Tests: tests/owner/hooks/test_worktree.py, tests/owner/git/test_git.py.
"""

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field

from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import occupancy, paths
from watchdog.owner.git import lfs, repositories, worktree_locks
from watchdog.owner.git.git import Git

# Files in a worktree's git dir that show an unfinished operation (gitrepository-layout(5), sequencer.c).
UNFINISHED = {
    "rebase-merge": "a rebase is in progress",
    "rebase-apply": "a rebase or am is in progress",
    "MERGE_HEAD": "a merge is in progress",
    "CHERRY_PICK_HEAD": "a cherry-pick is in progress",
    "REVERT_HEAD": "a revert is in progress",
    "BISECT_LOG": "a bisect is in progress",
    "BISECT_START": "a bisect is in progress",
    "sequencer": "a series of picks is in progress",
    "MERGE_AUTOSTASH": "an autostash is waiting",
}
# Files that show a git at work, for which a rescue does not help.
AT_WORK = {
    "index.lock": "git holds the index (index.lock)",
    "HEAD.lock": "git holds HEAD (HEAD.lock)",
    "NOTES_MERGE_PARTIAL": "a merge of notes is in progress",  # the resolution is only in git's entry
}
GITLINK = "160000"  # mode of a submodule's commit in an index or a tree
IN_USE = "in use: "  # prefix of a reason that is temporary: until the user of the directory is gone
# Refs that keep commits alive when the worktree is gone. Stash, bisect and worktree-private refs do not count.
HOLDING = ("refs/heads/", "refs/remotes/", "refs/tags/")


@dataclass(frozen=True, slots=True)
class Stage:
    """One entry of the index."""

    mode: str
    name: str  # of the object
    path: str


@dataclass(frozen=True, slots=True)
class Linked:
    """One linked worktree as git lists it. `git_dir` is its entry, `<common>/worktrees/NAME`."""

    path: str
    common: str
    git_dir: str
    branch: str | None  # refs/heads/…; None: HEAD is detached
    head: str | None  # a commit; None: the branch has none yet

    @property
    def short(self) -> str:
        """The short name of the branch; with a detached HEAD that of `git stash`."""
        return "(no branch)" if self.branch is None else short(self.branch)


@dataclass(slots=True)
class Reasons:
    """Reasons to keep a worktree: `work` can be rescued before it is moved; `never` forbids moving it at all."""

    work: list[str] = field(default_factory=list)
    never: list[str] = field(default_factory=list)


def short(branch: str) -> str:
    """A branch's short name."""
    return branch.removeprefix("refs/heads/")


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False


def index(git: Git, file: str | None = None) -> dict[int, list[Stage]]:
    """The index by stage: 0 is what is staged, 1 to 3 the sides of conflicts (git-ls-files(1)).

    `file`: another repository's index file. That repository's configuration is not read.
    """
    stages: dict[int, list[Stage]] = {}
    for line in git.run("ls-files", "--stage", "-z", index=file).split("\0"):
        words, tab, path = line.partition("\t")
        if tab:
            mode, name, stage = words.split(" ")
            stages.setdefault(int(stage), []).append(Stage(mode, name, path))
    return stages


def listed(git: Git) -> list[dict[str, str]]:
    """`git worktree list`, one dict per entry; the first is the main worktree (git-worktree(1))."""
    entries: list[dict[str, str]] = []
    for block in git.run("worktree", "list", "--porcelain", "-z").split("\0\0"):
        lines = [line for line in block.split("\0") if line]
        if lines:
            entries.append({key: value for key, _, value in (line.partition(" ") for line in lines)})
    if not all("worktree" in entry for entry in entries or [{}]):
        raise OwnerCallFailed("not_understood", "git worktree list names no worktree")
    return entries


def places(git: Git) -> tuple[str, str, str]:
    """Its entry, the git common dir and the top of the checkout; queried one by one, as names may contain newlines.

    Raises OwnerCallFailed for an answer that is not an absolute path.
    """
    asked = ("--absolute-git-dir", "--git-common-dir", "--show-toplevel")
    own, common, top = (git.run("rev-parse", "--path-format=absolute", place).removesuffix("\n") for place in asked)
    if not all(map(os.path.isabs, (own, common, top))):
        raise OwnerCallFailed("not_understood", "git rev-parse does not say where the repository is")
    return own, common, top


def find(git: Git, path: str) -> Linked:
    """The linked worktree at `path`. Raises PathRefused if it is not one, or not one that can be moved away."""
    try:
        dot_git = os.lstat(os.path.join(path, ".git"))
    except FileNotFoundError:
        raise PathRefused("no_worktree", f"{path} is not a git worktree") from None
    if not os.path.isfile(os.path.join(path, ".git")) or os.path.islink(os.path.join(path, ".git")):
        raise PathRefused("main_worktree", f"{path} is a main checkout, not a linked worktree")
    git_dir, common, top = places(git)
    if not _same(top, path):
        raise PathRefused("no_worktree", f"git calls {top} the top of {path}")
    if not _same(os.path.dirname(git_dir), os.path.join(common, "worktrees")):
        raise PathRefused("no_worktree", f"{git_dir} is not a worktree entry of {common}")
    with open(os.path.join(git_dir, "gitdir"), encoding="utf-8", errors="surrogateescape") as pointer:
        back = os.path.join(git_dir, pointer.read().rstrip("\n"))
    if not os.path.samestat(os.stat(back), dot_git):
        raise PathRefused("back_pointer", f"the entry {git_dir} points to {back}, not here")
    main, *linked = listed(git)
    if _same(main["worktree"], path):
        raise PathRefused("main_worktree", f"{path} is the main worktree")
    for entry in linked:
        if _same(entry["worktree"], path):
            return _attached(entry, path, common, git_dir)
    raise PathRefused("not_listed", f"git does not list {path}")


def _attached(entry: dict[str, str], path: str, common: str, git_dir: str) -> Linked:
    if "locked" in entry and not worktree_locks.ended_maker(entry["locked"], git_dir):
        raise PathRefused("locked", f"the worktree is locked{': ' + entry['locked'] if entry['locked'] else ''}")
    if "bare" in entry or "prunable" in entry:
        raise PathRefused("not_understood", "git calls the worktree bare or prunable")
    head = entry.get("HEAD", "0")
    return Linked(path, common, git_dir, entry.get("branch"), head if set(head) != {"0"} else None)


def nested(git: Git, tree: Linked) -> list[str]:
    """Why it cannot be moved away at all: it contains, or may contain, a repository, whose work only its own git knows.

    Must be called before anything else reads the tree. Gitlinks are read from the index and directories are listed; no
    git is run in them, since their configuration could run a program of the agent's.
    """
    places = (os.path.join(tree.path, stage.path) for stage in index(git).get(0, []) if stage.mode == GITLINK)
    found = (
        ["a submodule is checked out in it"] if any(os.path.isdir(one) and os.listdir(one) for one in places) else []
    )
    if os.path.lexists(os.path.join(tree.git_dir, "modules")):
        found.append("it has submodules")
    return found + _inside(tree.path)


def reasons_to_keep(git: Git, tree: Linked, inside: Sequence[str]) -> Reasons:
    """All reasons to keep the tree where it is. Empty only if all checks succeeded.

    `inside`: the result of `nested`, which may only contain that it is in use.
    """
    found = Reasons(never=list(inside))
    if git.run("config", "--get", "extensions.refStorage", good=(0, 1)).strip() not in ("", "files"):
        found.never.append("its repository keeps refs in a format that is not understood")
    for table, reasons in ((UNFINISHED, found.work), (AT_WORK, found.never)):
        reasons += [words for name, words in table.items() if os.path.lexists(os.path.join(tree.git_dir, name))]
    if tree.branch is None or tree.head is None:
        found.work.append("HEAD is detached or has no commit; its commits might be held by nothing else")
    content = lfs.look(git, tree.path, tree.common, entries(git))
    found.work += _changes(git, content)
    if content.alone:
        words = f"{len(content.alone)} files of git-lfs, first {content.alone[0]!r}"
        found.work.append(f"what lies there is in no LFS store of its repository: {words}")
    _index_surprises(git, tree, found)
    found.work += _unheld(git, tree)
    if stashes(git, tree):
        found.work.append(f"a stash was made on {tree.short}")
    return found


def stashes(git: Git, tree: Linked) -> list[str]:
    """The stashed commits that were made on its branch; all worktrees share one stash."""
    lines = [line.partition(" ") for line in git.run("stash", "list", "--format=%H %gs").splitlines()]
    return [name for name, _, words in lines if re.match(rf"(WIP on|On) {re.escape(tree.short)}: ", words)]


def entries(git: Git) -> list[lfs.IndexEntry]:
    """The index entries without conflicts."""
    return [lfs.IndexEntry(stage.mode, stage.name, stage.path) for stage in index(git).get(0, [])]


def _changes(git: Git, content: lfs.Content) -> list[str]:
    options = ("--porcelain", "-z", "--untracked-files=all", "--ignore-submodules=all", "--no-renames")
    lines = [line for line in git.run("status", *options).split("\0") if line]
    lines = [line for line in lines if line[:3] != " M " or line[3:] not in content.held]
    if not lines:
        return []
    changed = {content.filtered[line[3:]] for line in lines if line[1] == "M" and line[3:] in content.filtered}
    by = f"; what the filter {', '.join(sorted(changed))} would make of some is not known: no filter is run"
    untracked = sum(line.startswith("??") for line in lines)
    staged = sum(line[0] not in " ?" for line in lines)
    return [
        f"it is not clean: {len(lines)} paths ({untracked} untracked, {staged} staged), first {lines[0][3:]!r}"
        + (by if changed - {"lfs"} else "")
    ]


def _index_surprises(git: Git, tree: Linked, found: Reasons) -> None:
    """What status does not show: entries with a flag that hides changes, and gitlinks."""
    tagged = [line for line in git.run("ls-files", "-v", "-z").split("\0") if line]
    if any(line[0].islower() for line in tagged):
        found.work.append("files are marked assume-unchanged")
    if any(line[0] in "Ss" and os.path.lexists(os.path.join(tree.path, line[2:])) for line in tagged):
        found.work.append("files are marked skip-worktree and lie there all the same")
    links = {stage.path: stage.name for stage in index(git).get(0, []) if stage.mode == GITLINK}
    # Status is made to ignore them completely, including staged and deleted ones.
    if links != _committed_links(git, tree):
        found.work.append("another commit of a submodule is staged")
    if any(not os.path.isdir(os.path.join(tree.path, place)) for place in links):
        found.work.append("the directory of a submodule was deleted or replaced")


def _committed_links(git: Git, tree: Linked) -> dict[str, str]:
    """The gitlinks of HEAD's tree: path -> commit."""
    if tree.head is None:
        return {}
    lines = git.run("ls-tree", "-r", "-z", "--full-tree", tree.head).split("\0")
    pairs = (line.partition("\t") for line in lines if line.startswith(f"{GITLINK} "))
    return {path: words.split(" ")[2] for words, _, path in pairs}


def _inside(top: str) -> list[str]:
    """A repository or a served socket below the top, also in ignored directories; git's status shows neither."""
    errors: list[OSError] = []
    for directory, names, files in paths.below(top, onerror=errors.append):
        place = repr(os.path.relpath(directory, top))
        if {*names, *files} & (repositories.POINTERS if directory != top else repositories.OTHERS):
            return [f"a repository lies in it at {place}"]
        if "HEAD" in files and "objects" in names and "refs" in names:
            return [f"a bare repository lies in it at {place}"]
        if name := _served(directory, files):
            return [f"{IN_USE}a socket in it is served: {os.path.relpath(os.path.join(directory, name), top)!r}"]
    return [f"not all of it can be read: {errors[0].strerror} at {errors[0].filename!r}"] if errors else []


def _served(directory: str, files: list[str]) -> str | None:
    """A socket that a process serves, even if bound by a relative name or in another network namespace."""
    for name in files:
        try:
            if stat.S_ISSOCK(os.lstat(os.path.join(directory, name)).st_mode):
                parent = os.open(directory, paths.STEP)
                try:
                    if occupancy.served(parent, name):
                        return name
                finally:
                    os.close(parent)
        except FileNotFoundError:
            continue
    return None


def holders(git: Git, commit: str, branch: str | None) -> list[str]:
    """The branches, remote branches and tags, except `branch`, that hold the commit; symbolic refs do not count."""
    shown = git.run("for-each-ref", "--format=%(refname)%00%(symref)", "--contains", commit).splitlines()
    pairs = [line.split("\0") for line in shown]
    return [name for name, symbolic in pairs if name.startswith(HOLDING) and not symbolic and name != branch]


def _unheld(git: Git, tree: Linked) -> list[str]:
    """Whether only this worktree, or only its branch, holds commits, as reasons."""
    reasons = []
    if tree.head is not None and not holders(git, tree.head, tree.branch):
        reasons.append(f"{tree.short} has commits that are neither pushed nor merged")
    return reasons + held_by_its_log(git, tree)


def held_by_its_log(git: Git, tree: Linked) -> list[str]:
    """Whether only its reflog, or refs of its own, hold commits, as reasons."""
    reasons = []
    if git.run("for-each-ref", "refs/worktree/", "refs/bisect/", "refs/rewritten/"):
        reasons.append("it has refs of its own")
    try:
        with open(os.path.join(tree.git_dir, "logs", "HEAD"), encoding="utf-8", errors="replace") as log:
            seen = {name for line in log for name in line.split(" ", 2)[:2] if set(name) - {"0"}}
    except FileNotFoundError:
        seen = set()
    kept = branch_log(git, tree.branch) if tree.branch else []
    stdin = "".join(f"{name}\n" for name in [*sorted(seen), *(f"^{name}" for name in kept)])
    held = ("--not", "--branches", "--tags", "--remotes")
    if seen and git.run("rev-list", "--ignore-missing", "--max-count=1", "--stdin", *held, stdin=stdin).strip():
        reasons.append("its reflog holds commits that nothing else holds")
    return reasons


def branch_log(git: Git, branch: str) -> list[str]:
    """The commits in a branch's reflog, which stay while the branch does."""
    return git.run("reflog", "show", "--format=%H", branch, good=(0, 128)).split()
