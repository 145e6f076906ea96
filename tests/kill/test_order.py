"""Who holds a claim: only a daemon that is proved absent has lost it."""

import os
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from watchdog.kill.order import claim_is_stale, daemon_identity
from watchdog.processes.identity import boot_id, read_identity

HOST = "host of two words"


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that another daemon could be."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def claim(pid: int, *, ticks: int | None = None, boot: str | None = None, host: str = HOST) -> str:
    """What a daemon with that pid writes."""
    identity = read_identity(pid, host)
    assert identity is not None
    return f"daemon {pid} {identity.start_ticks if ticks is None else ticks} of boot {boot or boot_id()} of host {host}"


def test_a_claim_of_a_living_daemon_is_its_own_until_it_has_gone(other: subprocess.Popen[bytes]) -> None:
    """The same words, before and after."""
    its = claim(other.pid)
    assert not claim_is_stale(its, HOST)
    other.kill()
    other.wait()
    assert claim_is_stale(its, HOST)


def test_a_later_process_with_the_same_pid_and_another_boot_hold_nothing(other: subprocess.Popen[bytes]) -> None:
    """Pids come again; a boot that is over comes never."""
    identity = read_identity(other.pid, HOST)
    assert identity is not None
    assert claim_is_stale(claim(other.pid, ticks=identity.start_ticks - 1), HOST)
    assert claim_is_stale(claim(other.pid, boot=str(uuid.uuid4())), HOST)


def test_another_host_s_claim_is_never_ours_to_take(other: subprocess.Popen[bytes]) -> None:
    """Whether its process lives can be seen only there."""
    its = claim(other.pid, host="elsewhere")
    other.kill()
    other.wait()
    assert not claim_is_stale(its, HOST)


def test_our_own_claim_and_words_of_nobody_are_free() -> None:
    """The answer to our claim was lost; a person wrote into the table by hand."""
    assert daemon_identity(HOST) == claim(os.getpid())
    for text in (None, "", "me", daemon_identity(HOST), "daemon x y of boot b of host h", "daemon 1 2"):
        assert claim_is_stale(text, HOST), text
