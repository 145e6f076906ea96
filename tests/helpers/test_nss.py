"""Questions to NSS: the answers, and what a server that never answers keeps waiting."""

import asyncio
import grp
import os
import pwd
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.faults.hanging import Hanging
from tests.world import make_world
from watchdog.concurrency import threads
from watchdog.errors import OwnerCallFailed
from watchdog.helpers import nss

MANY = sorted(pwd.getpwall(), key=lambda entry: entry.pw_uid)[:20]


@pytest.mark.parametrize("entry", MANY, ids=lambda entry: entry.pw_name)
def test_groups_are_those_of_the_library(entry: pwd.struct_passwd) -> None:
    """Ours lets the interpreter's lock go."""
    assert sorted(nss.groups_of(entry.pw_name, entry.pw_gid)) == sorted(os.getgrouplist(entry.pw_name, entry.pw_gid))


def test_a_group_is_known_by_its_name() -> None:
    """One that is not there has no gid."""
    first = grp.getgrall()[0]
    assert nss.gid_of(first.gr_name) == first.gr_gid
    assert nss.gid_of("no-such-group") is None
    assert nss.gid_of(first.gr_name) == first.gr_gid


STUCK = """
import asyncio, os, time
from watchdog.concurrency import threads
from watchdog.helpers import nss
async def story():
    began, turns = time.monotonic(), 0
    question = nss.ask(lambda: nss.person(os.geteuid()))
    while time.monotonic() - began < 1:
        await asyncio.sleep(0.05)
        turns += 1
    print(question.done(), turns > 4, nss.gid_of("root"), nss.gid_of("root"), time.monotonic() - began < 2)
asyncio.run(story())
"""


@pytest.mark.parametrize("call", ["nss", "groups"])
def test_a_server_that_never_answers_keeps_neither_the_loop_nor_a_request(call: str) -> None:
    """os.getgrouplist() kept both: it holds the interpreter's lock while it waits (CPython 3.11)."""
    for world in make_world():
        hanging = Hanging(world.dir)
        hanging.begin(call)
        command = ["env", *hanging.words, sys.executable, "-c", STUCK]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
        gid = "None" if call == "nss" else "0"
        assert done.stdout.split() == ["False", "True", gid, gid, "True"], done.stderr


def test_so_many_questions_may_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is refused at once."""
    monkeypatch.setattr(nss, "MOST", threads.count(threads.NSS) + 1)

    async def story() -> None:
        slow = nss.ask(lambda: time.sleep(0.5))
        with pytest.raises(OwnerCallFailed, match="questions to NSS have no answer yet"):
            await nss.ask(int)
        await slow

    asyncio.run(story())


def test_a_user_that_nobody_can_look_up_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory server that is away: who was known stays so, and one thread waits for it, not one a look."""
    hangs, asked = threading.Event(), list[str]()
    uids = {"one": 7, "two": 8}

    def getpwnam(name: str) -> SimpleNamespace:
        asked.append(name)
        if asked.count(name) > 1:
            hangs.wait(60)
        return SimpleNamespace(pw_uid=uids[name])

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)

    async def play() -> None:
        accounts = nss.UserLookup()
        assert [await accounts.uid(""), await accounts.uid("one"), await accounts.uid("two")] == [os.geteuid(), 7, 8]
        for _ in range(5):
            assert await accounts.uid("one") == 7
        assert asked.count("one") == 2
        with pytest.raises(OwnerCallFailed, match="no user three"):
            await accounts.uid("three")
        asked.append("four")
        monkeypatch.setattr(nss, "USER_SECONDS", 0.05)
        with pytest.raises(OwnerCallFailed, match="NSS does not answer"):
            await accounts.uid("four")
        hangs.set()

    asyncio.run(play())
