"""Questions to NSS, which may take minutes: a directory server (sssd, LDAP) that is away.

Each has a thread of its own, which nobody waits for at our end: of the loop's common threads a few that hang would hold
up all that is done in threads, and our exit too.
"""

import asyncio
import os
import pwd
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from watchdog.errors import OwnerCallFailed
from watchdog.units import Person

NOBODY = 65534  # the group of a uid that has no entry in passwd
T = TypeVar("T")


def ask(question: Callable[[], T]) -> "asyncio.Future[T]":
    """Its answer, or what it raises. Whoever waits no longer leaves the thread behind."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(found: T | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
            answer.exception()  # perhaps nobody waits for it any more
        else:
            answer.set_result(found)  # type: ignore[arg-type] # of one of the two there is one

    def work() -> None:
        found, failed = None, None
        try:
            found = question()
        except Exception as error:  # noqa: BLE001 - who asked gets it
            failed = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, found, failed)

    threading.Thread(target=work, daemon=True).start()
    return answer


def person(uid: int) -> tuple[Person, list[int]]:
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
    return Person(uid, group, known, environment), os.getgrouplist(name, group) if known else [group]
