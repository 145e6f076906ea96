"""A process that looks like a vendor's program, and calls its hooks as that does (tests/scripted_agents/vendor.py)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

AGENT = Path(__file__).parent / "scripted_agents" / "vendor.py"
EVENT = {"session_id": "s", "cwd": "/srv/api", "hook_event_name": "PreToolUse", "tool_name": "Read"}


class FakeVendor:
    """One such process; `hook` is the command that its settings name."""

    def __init__(self, vendor: str, environment: dict[str, str], hook: str, prefix: tuple[str, ...] = ()) -> None:
        """`prefix`: the command that starts it elsewhere, or as somebody else."""
        inside = (*prefix, "bash", "-c", f'exec -a {vendor} "$@"', "bash", sys.executable) if prefix else (vendor,)
        self.process = subprocess.Popen(
            [*inside, str(AGENT), hook],
            executable=None if prefix else sys.executable,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = int(self._line()["pid"])

    def does(self, event: dict[str, Any]) -> dict[str, Any]:
        """What its hook answered to the event."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(event) + "\n")
        self.process.stdin.flush()
        return self._line()

    def close(self) -> None:
        """End it, by the end of its stdin."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the fake agent has ended: {self.process.wait(60)}"
        answer: dict[str, Any] = json.loads(line)
        return answer
