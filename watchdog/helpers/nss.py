"""NSS lookups, which may take minutes while a directory server (sssd, LDAP) is unreachable.

Each lookup has its own daemon thread (`threads`), at most `MOST` at a time. No lookup holds the interpreter lock:
`os.getgrouplist` of CPython 3.11 does (observed: every other thread stood still), so libc is called through ctypes,
which releases the lock.
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
NOBODY = 65534  # the group of a uid without an entry in passwd
MOST = 64  # lookups at a time
GROUPS = 65_536  # per user: NGROUPS_MAX of Linux
FRESH = 60.0  # seconds for which the gid of a group is cached
FIRST = 0.25  # seconds that a caller waits for the first lookup of a group
USER_SECONDS = 3.0  # to look up the uid of one user
T = TypeVar("T")
_libc = ctypes.CDLL(None)


def ask(question: Callable[[], T]) -> "asyncio.Future[T]":
    """Run a lookup in a thread; the future has its result or exception. A cancelled wait leaves the thread running."""
    if threads.count(threads.NSS) >= MOST:
        refused: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        refused.set_exception(OwnerCallFailed("not_started", f"{MOST} questions to NSS have no answer yet"))
        return refused
    return threads.wrapped(threads.begin(threads.NSS, question))


class Group:
    """The gid of a group by its name, from the last answer of NSS; refreshing it delays no caller."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._gid: int | None = None
        self._asked = float("-inf")
        self._question: Future[int | None] | None = None
        self._lock = threading.Lock()

    def gid(self) -> int | None:
        """The gid; None if there is no such group, or if NSS has not answered yet.

        For an unknown group this waits up to `FIRST` seconds, unless an earlier lookup is still waiting.
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
    """The gid of a group for callers that must not block. See `Group.gid`."""
    return _groups.setdefault(group, Group(group)).gid()


def groups_of(name: str, gid: int) -> list[int]:
    """Like os.getgrouplist(name, gid), but other threads can run meanwhile. Raises OSError."""
    room = 64
    while room <= GROUPS:
        found, count = (ctypes.c_uint * room)(), ctypes.c_int(room)
        if _libc.getgrouplist(os.fsencode(name), ctypes.c_uint(gid), found, ctypes.byref(count)) >= 0:
            return list(found[: count.value])
        room = max(2 * room, count.value)
    raise OSError(f"{name} is in more than {GROUPS} groups")


def person(uid: int) -> tuple[Account, list[int]]:
    """The account (with home and a clean environment) and the groups of a uid. Raises OwnerCallFailed."""
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
    """The uids of users by name. NSS may take minutes, so there is only one lookup at a time for each name."""

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Future[int | None]] = {}
        self._known: dict[str, int] = {}

    async def uid(self, user: str) -> int:
        """The uid of that user; our own for an empty name. While NSS does not answer, the last known uid.

        Raises OwnerCallFailed if there is no such user (any more), or if there was no answer yet.
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
