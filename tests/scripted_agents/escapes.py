"""An agent whose processes part from it in the seven known ways: writes "KIND PID" lines into FILE, then `up`.

usage: escapes.py FILE [deaf]. `deaf`: all of them ignore TERM.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

KINDS = ("plain", "setsid", "orphan", "daemon", "cleared", "job", "shell")
SLEEP = ("sleep", "1000")


def orphan(*, session: bool, environ: Mapping[str, str] = os.environ) -> int:
    """Its parent ends at once, and whoever adopts orphans is its parent from then on."""
    hear, tell = os.pipe()
    middle = os.fork()
    if middle == 0:
        if session:
            os.setsid()
        child = os.fork()
        if child == 0:
            os.execvpe(SLEEP[0], SLEEP, environ)
        os.write(tell, str(child).encode())
        os._exit(0)
    os.waitpid(middle, 0)
    return int(os.read(hear, 32))


def job() -> int:
    """A shell with job control gives it a process group of its own."""
    shell = subprocess.Popen(["bash", "-c", "set -m; sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE)
    assert shell.stdout is not None
    return int(shell.stdout.readline())


def main(file: str, *manner: str) -> None:
    if "deaf" in manner:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    found = {
        "plain": subprocess.Popen(SLEEP).pid,
        "setsid": subprocess.Popen(SLEEP, start_new_session=True).pid,
        "orphan": orphan(session=False),
        "daemon": orphan(session=True),
        "cleared": orphan(session=True, environ={"PATH": os.environ["PATH"]}),
        "job": job(),
        "shell": subprocess.Popen(["sh", "-c", "exec sleep 1000"]).pid,
    }
    assert tuple(found) == KINDS
    with open(f"{file}.new", "w") as out:
        out.write("".join(f"{kind} {pid}\n" for kind, pid in found.items()))
    os.rename(f"{file}.new", file)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
