"""`run` as the main process of a `Type=notify` unit: that becomes ready, stays, and ends, as without `run` (N08)."""

import sys

import pytest

from tests.systemd.machine import Machine
from tests.systemd.service import BIN, UNIT, agent, client, install, start
from tests.world import wait_for

pytestmark = pytest.mark.systemd
WATCHDOG = 3  # seconds; the unit is killed when it says nothing for so long
# Ready after a moment, then a beat a second, until a file is there.
SHELL = """
sleep 1; systemd-notify --ready --status="from $0"
while [ ! -e /tmp/hush-$0 ]; do systemd-notify WATCHDOG=1; sleep 1; done; exec sleep 1000
"""
# As a library does: beats where its unit's watchdog asks this very process for it.
LIBRARY = """
import os, socket, sys, time
name, address = sys.argv[1], os.environ["NOTIFY_SOCKET"]
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
out.connect(chr(0) + address[1:] if address[0] == "@" else address)
assert os.environ["WATCHDOG_PID"] == str(os.getpid()), os.environ
time.sleep(1)
out.send(b"READY=1\\nSTATUS=from " + name.encode())
while not os.path.exists("/tmp/hush-" + name):
    out.send(b"WATCHDOG=1")
    time.sleep(int(os.environ["WATCHDOG_USEC"]) / 3e6)
time.sleep(1000)
"""
KINDS = {"shell": ("sh", "-c", SHELL), "library": (sys.executable, "-c", LIBRARY)}


def unit_of(machine: Machine, name: str, *command: object, access: str = "all") -> None:
    """Start that unit; back when it is ready. `exec`: its processes need no rights to speak."""
    options = [f"--unit={name}", "--service-type=notify", f"--property=WatchdogSec={WATCHDOG}", "--property=Restart=no"]
    options += [f"--property=NotifyAccess={access}", "--property=TimeoutStartSec=30", "--property=LogLevelMax=debug"]
    done = machine.enter("systemd-run", "--quiet", *options, "--", *map(str, command), timeout=90)
    assert done.returncode == 0, done.stderr + machine.enter("journalctl", "-u", name, "-n", "30").stdout


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("daemon", ["with a daemon", "without a daemon"])
def test_a_notify_unit_lives_and_dies_under_run_as_without_it(machine: Machine, kind: str, daemon: str) -> None:
    """Ready when its agent says so, with its status; alive for three watchdog periods; failed when that is mute."""
    install(machine)
    start(machine) if daemon == "with a daemon" else machine.systemctl("stop", UNIT)
    tag = f"{kind}-{'on' if daemon == 'with a daemon' else 'off'}"
    run = (BIN / "agent-watchdog", "run", "--name", tag, "--")
    names = (f"plain-{tag}", f"under-{tag}")
    for name, before in zip(names, ((), run), strict=True):
        unit_of(machine, name, *before, *KINDS[kind], name, access="main" if kind == "library" else "all")
    for name in names:
        assert machine.show(name, "ActiveState", "StatusText") == {
            "ActiveState": "active",
            "StatusText": f"from {name}",
        }
    machine.run("sleep", str(3 * WATCHDOG))
    assert [machine.show(name, "ActiveState")["ActiveState"] for name in names] == ["active", "active"]
    if daemon == "with a daemon":
        found = agent(machine, tag)
        assert found is not None and found["beats"] > WATCHDOG
    for name in names:
        machine.run("touch", f"/tmp/hush-{name}")
    ended = {"ActiveState": "failed", "Result": "watchdog"}
    wait_for(lambda: all(machine.show(name, *ended) == ended for name in names), "both were ended by their watchdog")


def test_what_a_child_of_the_agent_says_of_its_own_end_is_not_the_units(machine: Machine) -> None:
    """STOPPING=1 would have systemd end the unit, WATCHDOG=trigger abort it, MAINPID= move it to another process."""
    install(machine)
    start(machine)
    child = (
        "import os, socket; out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); "
        "[out.sendto(words, os.environ['NOTIFY_SOCKET']) for words in "
        "(b'STOPPING=1', b'WATCHDOG=trigger', b'MAINPID=%d' % os.getpid(), b'WATCHDOG_USEC=1', b'READY=1')]"
    )
    script = f'"{sys.executable}" -c "{child}"; while :; do systemd-notify WATCHDOG=1; sleep 1; done'
    run = (BIN / "agent-watchdog", "run", "--name", "outer", "--", "sh", "-c", script)
    unit_of(machine, "child-service", *run)
    main = machine.show("child-service", "MainPID")["MainPID"]
    machine.run("sleep", str(2 * WATCHDOG))
    assert machine.show("child-service", "ActiveState", "MainPID") == {"ActiveState": "active", "MainPID": main}


def test_agents_live_over_stop_and_start_of_the_shipped_unit(machine: Machine) -> None:
    """Its runtime directory goes with it, and all sockets there: `run` of root's, a user's, a registered agent (P1)."""
    install(machine)
    start(machine)
    if not (machine.root / "home/alice").exists():
        machine.add_user("alice")
    loop = "while :; do systemd-notify --no-block WATCHDOG=1; sleep 1; done"
    # systemd expands what it starts: $$ is one $.
    register = f'eval "$$({BIN}/agent-watchdog register --name own --pid $$$$ --stall-after 4s)"; {loop}'
    run = (BIN / "agent-watchdog", "run", "--stall-after", "4s", "--name")
    machine.start("of-root", *run, "roots", "--", "sh", "-c", loop)
    machine.start("of-alice", *run, "alices", "--", "sh", "-c", loop, user="alice")
    machine.start("of-nobody", "sh", "-c", register, user="alice")
    names = ("roots", "alices", "own")

    def beats(name: str) -> int:
        return int((agent(machine, name) or {}).get("beats", 0))

    wait_for(lambda: all(beats(name) for name in names), "all are heard")
    machine.systemctl("stop", UNIT)
    assert not (machine.root / "run/agent-watchdog/control.sock").exists()
    machine.systemctl("start", UNIT)
    before = {name: beats(name) for name in names}
    wait_for(lambda: all(beats(name) > before[name] + 6 for name in names), "all are heard for longer than their limit")
    assert [agent(machine, name) is not None for name in names] == [True, True, True]
    signals = [entry for entry in machine.events() if entry["event"] == "kill.signal_sent"]
    assert signals == []
    assert client(machine, "status")["pid"]
