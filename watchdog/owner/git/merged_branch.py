"""The branch of a worktree that was moved to the trash: kept, or deleted if the owner wants that and nothing is lost.

It is deleted only by compare-and-set, in one transaction with the ref that holds its tip (`update-ref --stdin`: if
either has changed, nothing happens), and only if that is a branch of another name or a tag. A remote's copy of the same
name does not count: it disappears with the remote's branch, and then nothing holds the commits.
"""

import os
import re

from watchdog.errors import OwnerCallFailed
from watchdog.owner import copy_tree, paths
from watchdog.owner.git import worktree_trash, worktrees
from watchdog.owner.git.git import Git
from watchdog.owner.git.worktree_trash import Manifest

LOG = "branch.log"  # the branch's reflog, in the container: git deletes it with the branch


def after(git: Git, manifest: Manifest, container: int, merged: str) -> str:
    """Keep or delete the branch; `merged` is `keep` or `delete`. Returns a description. A failing git is not raised:
    the branch then stays.
    """
    branch = manifest.branch
    if branch is None:
        return "it had no branch"
    short = branch.removeprefix("refs/heads/")
    if merged != "delete" or branch == short:  # HEAD may be on a tag or a remote's branch, which we do not delete
        return f"its branch {short} stays"
    try:
        return _delete(git, branch, short, manifest, container)
    except OwnerCallFailed as error:
        return f"its branch {short} stays: {error}"


def _delete(git: Git, branch: str, short: str, manifest: Manifest, container: int) -> str:
    tip = git.run("rev-parse", "--verify", "--quiet", f"{branch}^{{commit}}", good=(0, 1)).strip()
    if not tip:
        return f"its branch {short} is gone"
    if any(entry.get("branch") == branch for entry in worktrees.listed(git)):
        return f"its branch {short} stays: it is checked out elsewhere"
    if branch in git.run("for-each-ref", "--format=%(symref)", "refs/heads/").split():
        return f"its branch {short} stays: another name stands for it"
    copy = re.compile(rf"refs/remotes/[^/]+/{re.escape(short)}")
    holding = [name for name in worktrees.holders(git, tip, branch) if not copy.fullmatch(name)]
    if tip != manifest.head or not holding:
        return f"its branch {short} stays: no other branch and no tag holds it"
    logged = "".join(f"{name}\n" for name in worktrees.branch_log(git, branch))
    others = ("--not", f"--exclude={short}", "--branches", "--remotes", "--tags", f"--glob={worktree_trash.RESCUE}*")
    if logged and git.run("rev-list", "--ignore-missing", "--max-count=1", "--stdin", *others, stdin=logged).strip():
        return f"its branch {short} stays: its reflog holds commits that nothing else holds"
    log = os.path.join(manifest.common, "logs", branch)
    copied = os.path.join(paths.real_path(container), LOG)
    if os.path.isfile(log) and not os.path.lexists(copied):
        copy_tree.copy_file(log, copied)
    at = git.run("rev-parse", "--verify", holding[0]).strip()
    git.run("merge-base", "--is-ancestor", tip, at)  # checked again; the transaction below checks once more
    git.run("update-ref", "--stdin", stdin=f"verify {holding[0]} {at}\ndelete {branch} {tip}\n")
    return f"its branch {short} was deleted: {holding[0]} holds it"


def bring_log(common: str, branch: str, container: int) -> None:
    """Restore the reflog of a recreated branch to what it was when the branch was deleted."""
    copied, log = os.path.join(paths.real_path(container), LOG), os.path.join(common, "logs", branch)
    if os.path.isfile(copied):
        os.makedirs(os.path.dirname(log), exist_ok=True)
        if os.path.isfile(log):  # git has just started a new one, with one line for the creation
            os.unlink(log)
        copy_tree.copy_file(copied, log)
