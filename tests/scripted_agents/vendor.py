"""A fake agent of a vendor: does as it is told on stdin, and calls its hooks as a vendor does.

Start it under the vendor's name: `Popen([vendor, path, hook], executable=python)`. Each line is one order, a JSON
object: an event, which is given to the hook; `{"loop": [seconds, before, after]}`: tool after tool of that time, with
these events around it, until a hook says stop; or `{"spawn": argv}`. One line of JSON comes back for each.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

HOOK = sys.argv[1]


def hook(event: dict[str, Any]) -> dict[str, Any]:
    """Run the hook for one event, in a shell and with pipes; what it answered."""
    done = subprocess.run(["/bin/sh", "-c", HOOK], input=json.dumps(event), capture_output=True, text=True, timeout=30)
    return {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def stops(answer: dict[str, Any]) -> bool:
    """Whether a vendor would end its turn, or start no tool, at that answer."""
    said = json.loads(answer["stdout"] or "{}")
    denied = said.get("hookSpecificOutput", {}).get("permissionDecision") == "deny"
    return denied or said.get("continue") is False or "stop" in said


def loop(seconds: float, before: str, after: str) -> dict[str, Any]:
    """Tools for ever; how many were begun, at which event a hook said stop, and how."""
    tools = 0
    while True:
        for name in (before, after):
            answer = hook({"session_id": "s", "cwd": "/srv/api", "hook_event_name": name, "tool_name": "Read"})
            if stops(answer):
                return {"tools": tools, "at": name, **answer}
            tools += name == before
            time.sleep(seconds if name == before else 0)


print(json.dumps({"pid": os.getpid()}), flush=True)
for line in sys.stdin:
    order = json.loads(line)
    if "spawn" in order:
        answer = {"pid": subprocess.Popen(order["spawn"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid}
    else:
        answer = loop(*order["loop"]) if "loop" in order else hook(order)
    print(json.dumps(answer), flush=True)
