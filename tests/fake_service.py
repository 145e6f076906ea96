"""Codex as its users have it: clients in directories of their own, and the app server that the first of them starts.

All are processes called `codex`, of a real interpreter; the server calls hooks as it is told
(tests/scripted_agents/vendor.py).
"""

import json
import os
import sys
from pathlib import Path
from typing import IO, Any

from tests.fake_vendor import AGENT
from tests.world import BIN, World, wait_for

HOOK = f"{BIN}/agent-watchdog beat --from codex"
SERVE = f"import runpy, sys; sys.argv = ['', {HOOK!r}]; runpy.run_path({str(AGENT)!r}, run_name='__main__')"
REST = "import signal; signal.pause()"
SHARED = ("app-server", "--listen", "unix://")


class FakeCodex:
    """One user's Codex. `orders` and `answers` are the server's, once a client has started it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.program = world.dir / "bin" / "codex"
        self.program.parent.mkdir()
        self.program.symlink_to(os.path.realpath(sys.executable))
        self.orders: IO[str]
        self.answers: IO[str]
        self.pid = 0

    def start(self, name: str, *options: str, place: str = "", serves: bool = False, words: str = "") -> Path:
        """A client below `run`, in a directory of its own, which starts the server if it is to; its directory."""
        directory = self.world.dir / (place or name)
        directory.mkdir(exist_ok=True)
        server = ""
        if serves:
            for pipe in ("orders", "answers"):
                os.mkfifo(self.world.dir / pipe)
            code, shared = f'-c "{SERVE}"', " ".join(SHARED)
            where = f'<"{self.world.dir}/orders" >"{self.world.dir}/answers"'
            server = f'setsid "{self.program}" {code} {shared} {where} & '
        before = self._clients().count(str(directory))
        client = f'cd "{directory}"; {server}"{self.program}" -c "{REST}" {words}'
        self.world.run(name, "bash", "-c", client, options=options)
        if serves:
            self.orders, self.answers = (self.world.dir / "orders").open("w"), (self.world.dir / "answers").open()
            self.pid = int(self._line()["pid"])
        self.world.wait_status(name, "running")
        wait_for(lambda: self._clients().count(str(directory)) > before, f"{name}'s client is there")
        return directory

    def does(self, order: dict[str, Any]) -> dict[str, Any]:
        """What the server's hook answered to an event, or came of another order."""
        self.orders.write(json.dumps(order) + "\n")
        self.orders.flush()
        return self._line()

    def tool(self, session: str) -> int:
        """A command of that session, as the server starts it: with its id, in a session of the kernel's of its own."""
        words = [f"CODEX_THREAD_ID={session}", f"CODEX_SESSION_ID={session}", "setsid", "sleep", "300"]
        return int(self.does({"spawn": ["env", *words]})["pid"])

    def close(self) -> None:
        """Let the server end."""
        if self.pid:
            self.orders.close()
            self.answers.close()

    def _clients(self) -> list[str]:
        """The directories of clients."""
        found = []
        for one in Path("/proc").glob("[0-9]*"):
            try:
                words = os.fsdecode((one / "cmdline").read_bytes()).split("\0")
                if words[0] == str(self.program) and SHARED[0] not in words:
                    found.append(os.readlink(one / "cwd"))
            except OSError:
                continue
        return found

    def _line(self) -> dict[str, Any]:
        line = self.answers.readline()
        assert line, "the fake server has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer


def event(session: str, directory: Path, name: str, **fields: Any) -> dict[str, Any]:
    """A hook's event of that session, as Codex 0.171.0 sends it."""
    return {"session_id": session, "cwd": str(directory), "hook_event_name": name, "model": "fake", **fields}
