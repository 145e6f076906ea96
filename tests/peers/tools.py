"""The real hcom and agent-relay, of the versions that the formats were seen in, installed in a directory of their own.

`python -m tests.peers.tools` installs what is missing below $PEERS, and says what could not be (no network, no npm).
"""

import os
import subprocess
import sys
from pathlib import Path

HCOM, RELAY = "hcom==0.7.31", "agent-relay@1.6.0"
DIRECTORY = Path(os.environ.get("PEERS", f"/tmp/agent-watchdog-peers-{os.geteuid()}"))
HCOM_PROGRAM = DIRECTORY / "hcom/bin/hcom"
RELAY_PROGRAM = DIRECTORY / "relay/node_modules/.bin/agent-relay"


def install() -> list[str]:
    """Install both where they are not there yet; what could not be, in words."""
    steps = {
        HCOM_PROGRAM: [
            [sys.executable, "-m", "venv", str(DIRECTORY / "hcom")],
            [str(DIRECTORY / "hcom/bin/pip"), "install", "-q", "--disable-pip-version-check", HCOM],
        ],
        # Its native modules are built here: with the headers of the node that is there, where Debian has put them.
        RELAY_PROGRAM: [["npm", "install", "--prefix", str(DIRECTORY / "relay"), "--no-audit", "--no-fund", RELAY]],
    }
    environ = dict(os.environ)
    if Path("/usr/include/node/node.h").exists():
        environ.setdefault("npm_config_nodedir", "/usr")
    failed = []
    for program, commands in steps.items():
        if works(program):
            continue
        (DIRECTORY / "relay").mkdir(parents=True, exist_ok=True)
        for command in commands:
            try:
                done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=1500)
            except (OSError, subprocess.TimeoutExpired) as error:
                failed.append(f"{program.name}: {error}")
                break
            if done.returncode:
                failed.append(f"{program.name}: {command[0]} ended with {done.returncode}: {done.stderr[-300:]}")
                break
    return failed


def works(program: Path) -> bool:
    """Whether it is there and starts."""
    try:
        return subprocess.run([program, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


if __name__ == "__main__":
    print("\n".join(install()) or f"hcom and agent-relay are in {DIRECTORY}")
