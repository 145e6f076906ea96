"""A helper looks at its own user's processes alone."""

import os
import subprocess

import pytest

from watchdog.errors import OwnerCallFailed
from watchdog.owner.credentials import refuse_foreign
from watchdog.owner.helper import CALLS, answer


def test_our_own_process_no_process_and_one_that_is_gone_are_looked_at() -> None:
    """What a call cannot read it reports itself."""
    for args in ({"pid": os.getpid()}, {"path": "/x"}, {"pid": 2**22 + 1}, {"pid": True}):
        refuse_foreign(args)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a process of another uid")
def test_a_process_that_has_dropped_meanwhile_is_not_looked_at_as_root() -> None:
    """Its environment is the user's word by then: where its terminal is, for one."""
    process = subprocess.Popen(["sleep", "60"], user=12001)
    try:
        with pytest.raises(OwnerCallFailed, match="12001") as refused:
            refuse_foreign({"pid": process.pid})
        assert refused.value.reason == "untouchable"
        for call in ("pane_find", "pane_shows", "pane_screen"):
            args = {"pid": process.pid, "start_ticks": 1}
            assert answer(CALLS, {"id": 1, "call": call, "args": args})["error"] == "untouchable"
    finally:
        process.kill()
        process.wait(20)
