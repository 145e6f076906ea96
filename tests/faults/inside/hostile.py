"""Any identity that a registry may hold goes to `send`; nobody here may get a signal. usage: hostile EXAMPLES SEED

Everybody of this pid namespace is a canary: a signal that may be blocked stays pending, SIGKILL ends them.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.processes.conftest import pending
from watchdog.core.process import Identity
from watchdog.errors import SignalRefused
from watchdog.processes import identity as identities
from watchdog.processes.signals import Guard, SendResult, send

HOST = "h"
BLOCKED = {signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1}
said: Counter[str] = Counter()


def main(examples: int, number: int) -> dict[str, int]:
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    canaries = [subprocess.Popen(["sleep", "1000"], start_new_session=bool(n % 2)) for n in range(6)]
    known = [identities.read_identity(canary.pid, HOST) for canary in canaries]
    everybody = [identity for identity in known if identity is not None]
    everybody += [Identity(HOST, identities.boot_id(), pid, 0) for pid in (1, os.getpid(), os.getppid())]
    text = st.text(max_size=8)
    odd = st.one_of(
        st.none(), st.booleans(), st.floats(), text, st.binary(max_size=4), st.lists(st.integers(), max_size=2)
    )
    wide = st.integers(-(2**70), 2**70)
    pids = mostly(st.sampled_from([i.pid for i in everybody]), st.integers(-300, 300) | wide | odd)
    ticks = mostly(st.sampled_from([i.start_ticks for i in everybody]), st.integers(-2, 2) | wide | odd)
    inodes = mostly(st.none() | st.sampled_from([i.pidfd_inode for i in everybody]), wide | odd)
    boots = mostly(st.just(identities.boot_id()), text | odd)
    hosts = mostly(st.just(HOST), text | odd)
    signals = mostly(st.sampled_from([*BLOCKED, signal.SIGKILL]), wide | odd)
    forged = st.builds(Identity, hosts, boots, pids, ticks, inodes)
    # One that is right in everything would be signalled, and rightly so.
    forged = forged.filter(lambda i: not any(same(i, each) for each in everybody))

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(forged, signals)
    def forge(identity: Identity, sig: signal.Signals) -> None:
        try:
            found = send(identity, sig, Guard(HOST))
        except SignalRefused as refusal:
            said[refusal.reason] += 1
        else:
            assert found is SendResult.GONE, (identity, sig)
            said["gone"] += 1

    try:
        forge()
        dead = sum(canary.poll() is not None for canary in canaries)
        hit = sum(pending(canary.pid) != 0 for canary in canaries) + (pending(os.getpid()) != 0)
    finally:
        for canary in canaries:
            canary.kill()
    return {"examples": said.total(), "dead": dead, "hit": hit, "kinds": len(said)}


def mostly(right: st.SearchStrategy[Any], wrong: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Each part wrong in one of five: else hardly any would get past the first check."""
    return st.integers(0, 4).flatmap(lambda number: right if number else wrong)


def same(one: Identity, other: Identity) -> bool:
    """The same process, as it may be signalled: True == 1, but True is not a pid."""
    return all(
        type(a) is type(b) and a == b
        for a, b in (
            (one.host, other.host),
            (one.boot_id, other.boot_id),
            (one.pid, other.pid),
            (one.start_ticks, other.start_ticks),
            (one.pidfd_inode, other.pidfd_inode),
        )
    )


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
