"""`restore`: lists the trash of repositories, and restores one worktree.

Tests: tests/e2e/test_restore.py.
"""

import argparse
import os
from contextlib import suppress
from urllib.parse import urlencode

from watchdog.cli.output import clean, clock, entries, refused, say, say_json, table, warn
from watchdog.cli.verb import Json, Verbs, add_verb, ask

_RESTORE = """\
List the worktrees that cleanup has moved to the trash, or restore one: its files, its index with what was staged, its
branch, a merge or rebase that was in progress. Searched are the repository around the current directory (or
--repository DIR) and all those that the daemon remembers; worktrees that an earlier daemon put there are found, too.

  agent-watchdog restore                     what there is, and until when
  agent-watchdog restore 3f2a --dry-run      where it would go
  agent-watchdog restore alpha

It is restored where it was; if the path or the branch is taken by now, beside it as PATH.restored. After
cleanup.trash_retention_hours only what is in refs is left (HOW: refs): commits, and tracked and untracked files.
A worktree with ignored files that nothing can rebuild, such as .env or a database, is kept, and these are listed.
"""
_SECONDS = 200.0


def add_verbs(verbs: Verbs) -> None:
    """Add the parser."""
    parser = add_verb(verbs, "restore", "list worktrees in the trash, or restore one", _RESTORE)
    parser.add_argument("id", metavar="ID", nargs="?", help="agent id, its first characters, or the agent's name")
    parser.add_argument("--repository", metavar="DIR", help="a directory in its repository (default: the current one)")
    parser.add_argument("--dry-run", action="store_true", help="show where it would go, and do nothing")
    parser.set_defaults(call=restore)


def restore(arguments: argparse.Namespace) -> int:
    """GET or POST /restore."""
    where = _where(arguments.repository)
    if arguments.id is None:
        return _list(arguments, where)
    body: Json = {**where, "id": arguments.id, "dry_run": arguments.dry_run}
    status, answer = ask(arguments, "POST", "/v1/restore", body, timeout=_SECONDS)
    if arguments.json:
        say_json({"success": False, **answer} if "success" not in answer else answer)
    if not answer.get("success"):
        return refused(status, answer)
    if not arguments.json:
        say(clean(answer.get("message")))
    return 0


def _where(repository: str | None) -> Json:
    """The place for the request; root adds its owner, since no user's git runs as root."""
    place = os.path.abspath(repository or ".")
    where: Json = {"place": place}
    if os.geteuid() == 0:
        with suppress(OSError):  # the helper reports the error
            where["owner_uid"] = os.stat(place).st_uid
    return where


def _list(arguments: argparse.Namespace, where: Json) -> int:
    status, answer = ask(arguments, "GET", "/v1/restore?" + urlencode(where), timeout=_SECONDS)
    if status != 200:
        return refused(status, answer)
    if arguments.json:
        say_json(answer)
        return 0
    found, problems, unheard = entries(answer.get("restorable")), answer.get("problems"), answer.get("unheard")
    for problem in problems if isinstance(problems, list) else []:
        late = isinstance(unheard, list) and problem in unheard
        if late or (arguments.repository and not found):
            warn(clean(problem))
    if not found:
        say("no worktree is in the trash of any known repository")
        return 0
    for line in table(("ID", "NAME", "HOW", "SINCE", "BRANCH", "WORKTREE"), [_row(one) for one in found]):
        say(line)
    for one in found:
        names = one.get("ignored")
        if isinstance(names, list) and names:
            count = one.get("ignored_count")
            more = count - len(names) if isinstance(count, int) else 0
            first = ", ".join(map(clean, names)) + (f" and {more} more" if more > 0 else "")
            say(f"{str(one.get('agent_id'))[:8]} is kept without limit, as git ignores, and nothing rebuilds, {first}")
        if one.get("recorded") is False:
            say(
                f"{str(one.get('agent_id'))[:8]} is kept without limit, as no record says where it was; move it by hand"
            )
    return 0


def _row(one: Json) -> list[object]:
    whole = one.get("restorable")
    branch = str(one.get("branch") or "").removeprefix("refs/heads/")
    how = "whole" if whole else "tree" if one.get("recorded") is False else "refs"
    where = one.get("common") if how == "refs" else one.get("path")
    return [str(one.get("agent_id"))[:8], one.get("name"), how, clock(one.get("trashed_at")), branch, where]
