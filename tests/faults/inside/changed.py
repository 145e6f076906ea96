"""A daemon of nobody, whose agent becomes root's. usage: changed plain|hidden

The agent starts as nobody's, and when it gets USR1 it execs a program that is setuid root and becomes root whole, as
sudo does: from then on nobody may not signal it. `hidden`: /proc is mounted with hidepid=2 as well, so it cannot even
be seen.
"""

import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.private import UP, cannot_be_ended, is_closed, running, temp_dir
from tests.setuid import make_program
from tests.world import wait_for

NOBODY = pwd.getpwnam("nobody")
WAITS = """
while not os.path.exists("enough"):
    time.sleep(0.05)
"""
ROOTED = f"""
import os, time
os.setresuid(0, 0, 0)
open("rooted", "w").close()
{WAITS}
"""
AGENT = f"""
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: os.execv(sys.argv[1], [sys.argv[1], "-I", "-c", {ROOTED!r}]))
os.setresuid({NOBODY.pw_uid}, {NOBODY.pw_uid}, {NOBODY.pw_uid})
{UP}
{WAITS}
"""


def as_root(mode: str) -> None:
    """Start the agent, hide what is to be hidden, and go on as nobody."""
    with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp") as directory:
        os.chown(directory, NOBODY.pw_uid, NOBODY.pw_gid)
        setuid = str(make_program(Path(directory)))
        agent = subprocess.Popen(["/usr/bin/python3", "-I", "-c", AGENT, setuid], cwd=directory, start_new_session=True)
        try:
            program = [sys.executable, "-m", "tests.faults.inside.changed", mode, str(agent.pid), directory]
            ids = ["--reuid", str(NOBODY.pw_uid), "--regid", str(NOBODY.pw_gid), "--clear-groups"]
            daemon = subprocess.Popen(["setpriv", *ids, *program])
            if mode == "hidden":
                wait_for(
                    lambda: Path(directory, "registered").exists() or daemon.poll() is not None, "it is registered"
                )
                subprocess.run(["mount", "-o", "remount,hidepid=2", "/proc"], check=True)
                Path(directory, "remounted").touch()
            assert daemon.wait(100) == 0
        finally:
            agent.kill()
            agent.wait()


def as_nobody(mode: str, pid: int, directory: Path) -> None:
    settings = {"kill": {"grace_seconds": 0.5, "verify_seconds": 2}, "log": {"level": "debug"}}
    with running(**settings) as world:
        wait_for((directory / "up").exists, "the agent is nobody's")
        status, answer = world.ask("POST", "/v1/agents", {"name": "changed", "pid": pid, "temp_dir": temp_dir(world)})
        assert status == 201, answer
        os.kill(pid, signal.SIGUSR1)
        wait_for((directory / "rooted").exists, "the agent is root's")
        if mode == "hidden":
            (directory / "registered").touch()
            wait_for((directory / "remounted").exists, "/proc hides it")
            assert not os.path.exists(f"/proc/{pid}")
            world.wait_sweeps(3)
            world.crash()  # the next one has no pidfd of it
            world.start()
            world.wait_sweeps(3)
            agent = world.agents()["changed"]
            assert agent["status"] == "running", agent
            assert world.count("agent.gone") == world.count("kill.requested") == 0
            assert (world.dir / "temp").is_dir()
            (directory / "enough").touch()
            world.wait_status("changed", "completed", "failed")
        else:
            cannot_be_ended(world, "changed", pid, "not_permitted")
            (directory / "enough").touch()
            is_closed(world, "changed", signalled=False)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        as_root(sys.argv[1])
        print(json.dumps({}))
    else:
        as_nobody(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
