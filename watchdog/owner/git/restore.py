"""Restores a worktree from the trash: its entry, its tree, its branch, byte for byte.

It needs only what is in the repository, no registry and no daemon: a container (`worktree_trash`) is enough.
1. The plan is written into the container: path, entry and branch. If path or branch are taken by now, they become
   `PATH.restored` and `BRANCH.restored`: nothing existing is replaced.
2. The branch is recreated if it is gone, by compare-and-set.
3. The entry is restored by one rename, locked meanwhile, so that no `git worktree prune` removes it.
4. The tree is restored by one rename; git's own list confirms it; the lock is removed.
5. The rest of the container is deleted. The rescue refs stay: they cost little, and only the owner deletes them.

A run killed at any point is finished by the next one. Both of git's pointers are written in the container, which no
other process touches, and without following links, as an entry may contain links. `git worktree repair` would write to
whatever the path leads to by then.
"""

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace

from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import copy_tree, paths, trash
from watchdog.owner.git import ignored_files, merged_branch, repositories, worktree_trash, worktrees
from watchdog.owner.git.git import Git
from watchdog.owner.git.worktree_trash import Manifest

GIT_SECONDS = 100.0
PLAN = "restore.json"
BACK = "entry.back"
ADDED = ".restored"
LOCK = "agent-watchdog is restoring it"
NAMES = 5  # ignored files listed per container
SHORTEST = 4  # characters of an id that are accepted as its abbreviation


@dataclass(frozen=True, slots=True)
class Plan:
    """The destination. `branch`: HEAD's branch afterwards (refs/heads/…); None: HEAD is left as it is."""

    path: str
    entry: str
    branch: str | None


def commons(places: Iterable[str]) -> tuple[list[str], list[str]]:
    """The git common dirs of the repositories that contain these directories, each once; and problems."""
    found: dict[str, None] = {}
    problems = []
    for place in places:
        try:
            top = _around(place)
            asked = ("rev-parse", "--path-format=absolute", "--git-common-dir")
            found[os.path.realpath(Git(top, GIT_SECONDS).run(*asked).rstrip("\n"))] = None
        except (OSError, PathRefused, OwnerCallFailed) as error:
            problems.append(f"{place}: {error.strerror if isinstance(error, OSError) else error}")
    return list(found), problems


def _around(place: str) -> str:
    """The checkout or git dir that is, or contains, the directory. Raises OSError, PathRefused."""
    fd = os.open(place, paths.STEP & ~os.O_NOFOLLOW)  # the owner named it, so links are followed
    try:
        top = repositories.around(fd, place.count("/") + 1)
    finally:
        os.close(fd)
    if top is None:
        raise PathRefused("no_repository", "no git repository lies there")
    return top


def restorable(places: list[str]) -> dict[str, object]:
    """A helper call: what the trash of these repositories holds, and rescue refs whose trash is already deleted.

    `places` are directories in the repositories, or their common dirs.
    """
    found: list[dict[str, object]] = []
    remembered = [place for place in places if os.path.isdir(worktree_trash.bin_of(place))]
    known, problems = commons(place for place in places if place not in remembered)
    for common in dict.fromkeys([*map(os.path.realpath, remembered), *known]):  # `remembered` needs no git to be listed
        try:
            manifests = list(_manifests(common))
            for one in manifests:
                work = list(one.ignored or [])
                try:
                    work = worktree_trash.work_in(common, _place(common, one.agent_id), one).work
                except (OSError, OwnerCallFailed) as error:
                    problems.append(f"{common}: what git ignores in {one.agent_id} is not known: {error}")
                found.append(_shown(one, common, work))
            there = {manifest.agent_id for manifest in manifests}
            for agent_id in _unrecorded(common, there):
                where = {"common": common, "path": os.path.join(_place(common, agent_id), trash.TREE)}
                found.append({"agent_id": agent_id, **where, "restorable": False, "recorded": False})
                there.add(agent_id)
            for agent_id, refs in _rescued(Git(common, GIT_SECONDS, git_dir=common)).items():
                if agent_id not in there:
                    found.append({"agent_id": agent_id, "common": common, "restorable": False, "refs": refs})
        except (OSError, PathRefused, OwnerCallFailed) as error:
            problems.append(f"{common}: {error}")
    return {"found": found, "problems": problems}


def _place(common: str, agent_id: str) -> str:
    return os.path.join(worktree_trash.bin_of(common), agent_id)


def _unrecorded(common: str, known: Collection[str]) -> list[str]:
    """Containers with a tree but without a record of its origin: they are neither deleted nor restored."""
    with ExitStack() as stack:
        try:
            trash_bin = worktree_trash.open_bin(stack, common, create=False)
        except FileNotFoundError:
            return []
        found = []
        for agent_id in worktree_trash.ids(trash_bin):
            container = trash.open_trash(trash_bin, agent_id, create=False)
            try:
                if agent_id not in known and worktree_trash.has_tree(container):
                    found.append(agent_id)
            finally:
                os.close(container)
        return found


def _shown(manifest: Manifest, common: str, names: Sequence[str]) -> dict[str, object]:
    """A container for a list, with only a few names of the work in it, as the answer has to be short."""
    few = {"ignored": names[:NAMES], "ignored_count": len(names)}
    facts = {key: value for key, value in asdict(manifest).items() if key not in ("copies", "rebuildable")}
    return {**facts, **few, "common": common, "restorable": True}


def restore(wanted: str, places: list[str], dry_run: bool = False) -> dict[str, object]:
    """A helper call: restore one. `wanted`: an agent's id, the start of it, or a name that is unique.

    Raises OwnerCallFailed (`not_there`, `ambiguous`, `only_refs`, `not_restored`), PathRefused, OSError.
    """
    known, problems = commons(places)
    fitting = [(common, one) for common in known for one in _manifests(common) if _fits(one, wanted)]
    if not fitting:
        _only_refs(known, wanted)
        told = "; ".join(problems) or f"it is in none of {', '.join(known)}"
        raise OwnerCallFailed("not_there", f"no worktree of {wanted} lies in the trash: {told}")
    if len(fitting) > 1:
        ids = ", ".join(one.agent_id for _, one in fitting)
        raise OwnerCallFailed("ambiguous", f"{wanted} may be any of {ids}")
    common, manifest = fitting[0]
    with ExitStack() as stack:
        container = worktree_trash.open_container(stack, common, manifest.agent_id, create=False)
        return _Restoring(common, manifest, container).run(dry_run)


def _manifests(common: str) -> Iterator[Manifest]:
    """The manifests of containers that hold a tree, or whose tree a killed restore has already moved."""
    with ExitStack() as stack:
        try:
            trash_bin = worktree_trash.open_bin(stack, common, create=False)
        except FileNotFoundError:
            return
        for agent_id in worktree_trash.ids(trash_bin):
            container = trash.open_trash(trash_bin, agent_id, create=False)
            try:
                manifest = worktree_trash.manifest_in(container)
                begun = worktree_trash.has_tree(container) or trash.read_json(container, PLAN) is not None
            finally:
                os.close(container)
            if manifest is not None and begun:
                yield replace(manifest, agent_id=agent_id)


def _fits(manifest: Manifest, wanted: str) -> bool:
    return wanted == manifest.name or (len(wanted) >= SHORTEST and manifest.agent_id.startswith(wanted))


def _rescued(git: Git) -> dict[str, dict[str, str]]:
    """The rescue refs of a repository, by agent, each with its commit."""
    found: dict[str, dict[str, str]] = {}
    for line in git.run("for-each-ref", "--format=%(objectname) %(refname)", worktree_trash.RESCUE).splitlines():
        name, _, ref = line.partition(" ")
        found.setdefault(ref.removeprefix(worktree_trash.RESCUE).partition("/")[0], {})[ref] = name
    return found


def _only_refs(known: list[str], wanted: str) -> None:
    """Raise `only_refs` if the trash of that agent was emptied, and rescue refs still hold its work."""
    for common in known:
        for agent_id, refs in _rescued(Git(common, GIT_SECONDS, git_dir=common)).items():
            if len(wanted) >= SHORTEST and agent_id.startswith(wanted):
                raise OwnerCallFailed(
                    "only_refs",
                    f"the trash of {agent_id} was emptied; its work is in {', '.join(sorted(refs))}: "
                    f"git -C {common} worktree add PATH {max(refs, key=lambda ref: ref.endswith('/files'))}",
                )


class _Restoring:
    """The restore of one container."""

    def __init__(self, common: str, manifest: Manifest, container: int) -> None:
        self._common = common
        self._manifest = manifest
        self._container = container
        self._git = Git(common, GIT_SECONDS, git_dir=common)
        self._git.write_like(os.path.join(common, "objects"))

    def run(self, dry_run: bool) -> dict[str, object]:
        """Do all of it, or with `dry_run` only report what would be done."""
        raw = trash.read_json(self._container, PLAN)
        plan = Plan(str(raw["path"]), os.path.basename(str(raw["entry"])), _text(raw["branch"])) if raw else None
        there = worktree_trash.has_tree(self._container)
        if there:
            if plan is not None and not dry_run:
                self._take_back(plan)
            plan = self._planned()
        if plan is None:
            raise OwnerCallFailed("not_there", "its tree is not in the trash")
        if dry_run:
            return self._answer(plan, "would be restored")
        if there:
            trash.write_json(self._container, PLAN, asdict(plan))
            self._bring_branch(plan)
            self._bring_entry(plan)
            self._bring_tree(plan)
        self._confirm(plan)
        self._leave()
        return self._answer(plan, "restored")

    def _answer(self, plan: Plan, how: str) -> dict[str, object]:
        """The answer, with what is not as it was."""
        manifest, changes = self._manifest, []
        if plan.path != manifest.path:
            changes.append(f"{manifest.path} is taken")
        if plan.branch != manifest.branch:
            changes.append(f"its branch {_short(manifest.branch)} is taken, it is on {_short(plan.branch)}")
        if manifest.ignored:
            changes.append(f"with {ignored_files.told(manifest.ignored)}, which git ignores")
        where: dict[str, object] = {"path": plan.path, "branch": plan.branch, "head": manifest.head}
        words = f"{how}: {plan.path}" + (f" ({'; '.join(changes)})" if changes else "")
        return {"agent_id": manifest.agent_id, "name": manifest.name, "message": words, **where}

    # -- the destination

    def _planned(self) -> Plan:
        manifest = self._manifest
        branch = self._free_branch()
        path = manifest.path
        if branch != manifest.branch or os.path.lexists(path):
            path = _free(f"{path}{ADDED}", os.path.lexists)
        try:
            parent, _ = paths.open_parent(path)
        except FileNotFoundError:
            raise OwnerCallFailed("not_restored", f"make {os.path.dirname(path)} first: it is not there") from None
        try:
            if os.fstat(parent).st_dev != os.fstat(self._container).st_dev:
                raise OwnerCallFailed("not_restored", f"{os.path.dirname(path)} lies on another file system now")
        finally:
            os.close(parent)
        entry = _free(manifest.entry, lambda name: os.path.lexists(self._entry(name)))
        return Plan(path, entry, branch)

    def _entry(self, name: str) -> str:
        return os.path.join(self._common, "worktrees", name)

    def _free_branch(self) -> str | None:
        """The branch itself if it is at its commit or gone, and not checked out; else a new name."""
        branch, head = self._manifest.branch, self._manifest.head
        if branch is None:
            return None
        taken = {entry.get("branch") for entry in worktrees.listed(self._git)}
        if branch not in taken and self._at(branch) in ("", head or ""):
            return branch
        return _free(f"{branch}{ADDED}", lambda name: bool(self._at(name)) or name in taken)

    def _at(self, ref: str) -> str:
        """The commit of a ref; empty if there is no such ref."""
        return self._git.run("rev-parse", "--verify", "--quiet", ref, good=(0, 1)).strip()

    # -- the steps

    def _take_back(self, plan: Plan) -> None:
        """Undo what a killed run did before it moved the tree, as a new plan is made."""
        place = self._entry(plan.entry)
        with suppress(OSError):
            with open(os.path.join(place, "locked"), encoding="utf-8", errors="replace") as words:
                ours = words.read().strip() == f"{LOCK}: {self._manifest.agent_id}"
            if ours:
                trash.remove_container(self._container, BACK, trash.Freed())
                os.rename(place, BACK, dst_dir_fd=self._container)

    def _bring_branch(self, plan: Plan) -> None:
        head = self._manifest.head
        if plan.branch is None or head is None or self._at(plan.branch) == head:
            return
        self._git.run("update-ref", plan.branch, head, "0" * len(head))
        if plan.branch == self._manifest.branch:
            merged_branch.bring_log(self._common, plan.branch, self._container)

    def _bring_entry(self, plan: Plan) -> None:
        trash.remove_container(self._container, BACK, trash.Freed())
        place = paths.real_path(self._container)
        copy_tree.copy_tree(os.path.join(place, worktree_trash.ENTRY), self._container, BACK)
        back = os.path.join(place, BACK)
        _write(os.path.join(back, "locked"), f"{LOCK}: {self._manifest.agent_id}\n")
        entry, pointer = self._entry(plan.entry), f"{plan.path}/.git"
        _point(os.path.join(back, "gitdir"), "", entry, pointer)
        _point(os.path.join(place, trash.TREE, ".git"), "gitdir: ", plan.path, entry)
        with suppress(FileExistsError):
            os.mkdir(os.path.join(self._common, "worktrees"), stat.S_IMODE(os.stat(self._common).st_mode))
        os.rename(back, self._entry(plan.entry))
        trash.sync(self._container)
        if plan.branch is not None and plan.branch != self._manifest.branch:
            Git(self._common, GIT_SECONDS, git_dir=self._entry(plan.entry)).run("symbolic-ref", "HEAD", plan.branch)

    def _bring_tree(self, plan: Plan) -> None:
        parent, name = paths.open_parent(plan.path)
        try:
            os.rename(trash.TREE, name, src_dir_fd=self._container, dst_dir_fd=parent)
            trash.sync(parent)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise OwnerCallFailed("not_restored", f"{plan.path} is taken now: ask again") from None
        finally:
            os.close(parent)

    def _confirm(self, plan: Plan) -> None:
        """Check that git lists the worktree there. Raises OwnerCallFailed; the next call continues from here."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._entry(plan.entry), "locked"))
        tree = worktrees.find(Git(plan.path, GIT_SECONDS), plan.path)
        if os.path.basename(tree.git_dir) != plan.entry:
            raise OwnerCallFailed("not_restored", f"{plan.path} is there, but git takes {tree.git_dir} for its entry")

    def _leave(self) -> None:
        """Delete the rest of the container: it is only a copy."""
        with ExitStack() as stack:
            trash_bin = worktree_trash.open_bin(stack, self._common, create=False)
            name = worktree_trash.give_up(trash_bin, self._manifest.agent_id)
            trash.remove_container(trash_bin, name, trash.Freed())


def _free(name: str, taken: Callable[[str], bool]) -> str:
    """The name, or the first of `name2`, `name3`, … that is free."""
    number = 1
    found = name
    while taken(found):
        number += 1
        found = f"{name}{number}"
    return found


def _short(branch: str | None) -> str:
    return "none" if branch is None else branch.removeprefix("refs/heads/")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _point(file: str, before: str, place: str, target: str) -> None:
    """Write one of git's pointers, relative to `place`, unless it already leads to `target`, also by a relative path.

    A link of that name is replaced, not followed.
    """
    with suppress(OSError, UnicodeDecodeError):
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, encoding="utf-8") as now:
            if os.path.normpath(os.path.join(place, now.read().removeprefix(before).rstrip("\n"))) == target:
                return
    _write(file, f"{before}{target}\n")


def _write(path: str, words: str) -> None:
    """Write a one-line file as git does; an existing one is replaced, a link not followed."""
    beside = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(beside)
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _mode(path))
    with open(fd, "wb") as file:
        os.fchmod(fd, _mode(path))
        file.write(os.fsencode(words))
    os.rename(beside, path)


def _mode(path: str) -> int:
    """The mode of the file that is replaced; for a new one git's default."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode):
            return stat.S_IMODE(status.st_mode)
    return 0o644
