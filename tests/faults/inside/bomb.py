"""A fork bomb of 100 is ended. usage: bomb TIMES run|register DIRECTORY

DIRECTORY is a pids cgroup with a limit; the bomb goes into one below it with the limit 100.
"""

import json
import sys
from pathlib import Path

from tests.faults.private import DEAF, UP, between, left, running, start
from tests.world import alive, wait_for

SIZE = 100
GRACE = 1.0
# Each one forks all the time, dies now and then, and lets the kernel reap its children.
BOMB = """
import random
with open(LIMIT + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0:
            random.seed()
    except BlockingIOError:
        pass
    time.sleep(0.01 * random.random())
    if random.random() < 0.02 and os.getppid() != FIRST:
        os._exit(0)
"""


def once(directory: Path, *, by_run: bool) -> dict[str, float]:
    with running(kill={"grace_seconds": GRACE}) as world:
        code = f"LIMIT, FIRST = {str(directory)!r}, os.getppid(){DEAF}{UP}{BOMB}"
        start(world, "bomb", code, by_run=by_run)
        wait_for(lambda: int((directory / "pids.current").read_text()) >= SIZE - 1, "the bomb is full")
        world.cli("kill", "bomb")
        survivors = left(world)
        ended = world.wait_event("kill.finished", name="bomb")
        began = world.wait_event("kill.signal_sent", name="bomb")
        return {
            "survivors": len(survivors),
            "inside": sum(alive(int(pid)) for pid in (directory / "cgroup.procs").read_text().split()),
            "after_grace": between(began, ended) - GRACE,
        }


def main(times: int, how: str, above: str) -> list[dict[str, float]]:
    directory = Path(above) / "bomb"
    directory.mkdir()
    (directory / "pids.max").write_text(str(SIZE))
    return [once(directory, by_run=how == "run") for _ in range(times)]


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), *sys.argv[2:])))
