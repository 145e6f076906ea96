"""Questions to NSS, which may take minutes: a directory server (sssd, LDAP) that is away.

Each has a daemon thread of its own (`threads`), at most `MOST` at a time. No question holds the interpreter's lock:
`os.getgrouplist` of CPython 3.11 does while NSS is asked (seen: every other thread stood still), so libc is called by
ctypes, which lets the lock go.
"""

import asyncio
import ctypes
import grp
import os
import pwd
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

from watchdog.clock import Clock
from watchdog.concurrency import threads
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.transient_units import Account

_clock = Clock()
NOBODY = 65534  # the group of a uid that has no entry in passwd
MOST = 64  # questions that may wait for an answer at once
GROUPS = 65_536  # of one person: NGROUPS_MAX of Linux
FRESH = 60.0  # seconds that the gid of a group is believed
FIRST = 0.25  # seconds that the first question for a group may keep its caller waiting
USER_SECONDS = 3.0  # for the uid of one user
T = TypeVar("T")
_libc = ctypes.CDLL(None)


def ask(question: Callable[[], T]) -> "asyncio.Future[T]":
    """Its answer, or what it raises. Whoever waits no longer leaves the thread behind."""
    if threads.count(threads.NSS) >= MOST:
        refused: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        refused.set_exception(OwnerCallFailed("not_started", f"{MOST} questions to NSS have no answer yet"))
        return refused
    return threads.wrapped(threads.begin(threads.NSS, question))


class Group:
    """The gid of a group by its name, as NSS said last; asking again delays no caller."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._gid: int | None = None
        self._asked = float("-inf")
        self._question: Future[int | None] | None = None
        self._lock = threading.Lock()

    def gid(self) -> int | None:
        """None: there is no such group, or NSS has not answered yet.

        A question for a group that is not known waits `FIRST` seconds, unless a former one has no answer yet.
        """
        with self._lock:
            question, known = self._question, self._gid is not None
            if question is not None and not question.done():
                return self._gid
            if known and _clock.mono() - self._asked < FRESH:
                return self._gid
            self._asked = _clock.mono()
            self._question = question = threads.begin(threads.NSS, self._ask)
        if not known:
            with suppress(TimeoutError, OSError):
                question.result(FIRST)
        return self._gid

    def _ask(self) -> int | None:
        try:
            self._gid = grp.getgrnam(self._name).gr_gid
        except KeyError:
            self._gid = None
        return self._gid


_groups: dict[str, Group] = {}


def gid_of(group: str) -> int | None:
    """The gid of a group, for a caller that must not wait. See `Group.gid`."""
    return _groups.setdefault(group, Group(group)).gid()


def groups_of(name: str, gid: int) -> list[int]:
    """As os.getgrouplist(name, gid); other threads run meanwhile. Raises OSError."""
    room = 64
    while room <= GROUPS:
        found, count = (ctypes.c_uint * room)(), ctypes.c_int(room)
        if _libc.getgrouplist(os.fsencode(name), ctypes.c_uint(gid), found, ctypes.byref(count)) >= 0:
            return list(found[: count.value])
        room = max(2 * room, count.value)
    raise OSError(f"{name} is in more than {GROUPS} groups")


def person(uid: int) -> tuple[Account, list[int]]:
    """Home, groups and a clean environment of a uid. Raises OwnerCallFailed."""
    if os.geteuid() not in (0, uid):
        raise OwnerCallFailed("not_permitted", f"a daemon of uid {os.geteuid()} cannot act as uid {uid}")
    try:
        entry = pwd.getpwuid(uid)
        name, home, group = entry.pw_name, entry.pw_dir, entry.pw_gid
    except KeyError:
        name, home, group = str(uid), "/", NOBODY
    path = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
    if uid == os.geteuid():
        path, home = os.environ.get("PATH", path), os.environ.get("HOME", home)
    known = not name.isdigit()
    environment = {
        "PATH": path,
        "HOME": home,
        "USER": name,
        "LOGNAME": name,
        "LANG": os.environ.get("LANG", "C.UTF-8"),
    }
    return Account(uid, group, known, environment), groups_of(name, group) if known else [group]


class UserLookup:
    """The uids of users by their names. NSS may take minutes (a directory server that is away): one question each."""

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Future[int | None]] = {}
        self._known: dict[str, int] = {}

    async def uid(self, user: str) -> int:
        """Of that user; of none ourselves. While NSS does not answer, what it said last.

        Raises OwnerCallFailed: there is no such user (any more), or nothing is known yet.
        """
        if not user:
            return os.geteuid()
        answer = self._asked.get(user)
        if answer is None:
            answer = self._asked[user] = ask(partial(_uid_of, user))
        if not (await asyncio.wait([answer], timeout=0.0 if user in self._known else USER_SECONDS))[0]:
            if user in self._known:
                return self._known[user]
            raise OwnerCallFailed("unknown_user", f"the uid of {user} is not known yet (NSS does not answer)")
        self._asked.pop(user, None)
        found = answer.result()
        if found is None:
            self._known.pop(user, None)
            raise OwnerCallFailed("not_permitted", f"there is no user {user} any more")
        self._known[user] = found
        return found


def _uid_of(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None
