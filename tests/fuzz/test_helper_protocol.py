"""Lines between the daemon and an owner's helper, in both directions: either side may be anybody's process.

The helper answers each line that is a request with one line, and ends at what is none. The daemon takes a helper that
does not keep to the protocol for lost, at once, and the next call has a new one.
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.fuzz.documents import fuzz, nearly, objects, texts, values
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.owner.helper import CALLS, answer

pytestmark = pytest.mark.fuzz

ARGS = (
    "path",
    "pid",
    "start_ticks",
    "told",
    "pane",
    "directories",
    "passed",
    "kind",
    "key",
    "token",
    "end",
    "processes",
)
SAFE = sorted(CALLS.keys() - {"end_report_done", "source_forget"})  # these change something, where they are told so


def test_a_helper_answers_any_request() -> None:
    """Whatever the arguments are: a result, or an error with a word and a sentence."""

    def check(data: bytes) -> None:
        try:
            request = json.loads(data)
        except (ValueError, RecursionError):
            return
        if not isinstance(request, dict):
            return
        said = answer({name: CALLS[name] for name in SAFE}, request)
        assert said["ok"] is True or {"error", "message"} <= said.keys()
        json.dumps(said)

    args = objects(ARGS, ("/nowhere", "claude", "hcom"))
    requests = st.builds(lambda call, told: {"id": 1, "call": call, "args": told}, st.sampled_from(SAFE), args)
    fuzz("helper_requests", texts(requests | nearly({"id": 1, "call": "ping", "args": {}})), check)


FAKE = """
import base64, sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(base64.b64decode(sys.argv[1]))
    sys.stdout.buffer.flush()
"""


def test_the_daemon_survives_any_answer(tmp_path: Path) -> None:
    """A result, or OwnerCallFailed with its reason; nothing else, and no call waits for ever."""

    async def ask(argv: list[str]) -> None:
        owners = HelperPool(argv=argv)
        try:
            await owners.call(os.geteuid(), "ping", {}, 5.0)
        except OwnerCallFailed as error:
            assert str(error)
        finally:
            await owners.close()

    def check(data: bytes) -> None:
        argv = [sys.executable, "-c", FAKE, base64.b64encode(data[:50_000]).decode()]
        asyncio.run(asyncio.wait_for(ask(argv), 30))

    replies = nearly({"id": 1, "ok": True, "result": {}, "error": "e", "message": "m"}) | values(("id", "ok"))
    fuzz("helper_replies", texts(replies).map(lambda text: text + b"\n"), check)


def test_a_helper_ends_at_what_is_no_request() -> None:
    """By its own daemon's fault alone; it hangs at none, and no answer that it gives is a result."""
    for line in (
        b"null\n",
        b"[" * 20_000 + b"\n",
        b"\xff\n",
        b"{\n",
        b'{"id":1,"call":[],"args":{}}\n',
        b'{"args":1}\n',
    ):
        done = subprocess.run(
            [sys.executable, "-m", "watchdog.owner.helper"], input=line, capture_output=True, timeout=60, check=False
        )
        for said in done.stdout.splitlines():
            assert json.loads(said)["ok"] is False
