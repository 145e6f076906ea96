"""What the tmux pane of an agent shows, as a hash to compare, and whether it asks a person: its text goes nowhere else.

A stalled agent's spinner, clock and counters go on. Which glyphs a program turns and how it counts changes with each of
its versions, so what is compared is what none of them is drawn with: letters, without those that are a number's unit.
"""

import hashlib
import re
import time
from contextlib import suppress

from watchdog.core.permission_prompts import asked, works
from watchdog.core.vendors import is_unprompted
from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals import TERMINALS, pane_lookup, panes

LOOKING = 2.0  # seconds for the whole look; a living tmux answers in 5 ms
# A number with its unit, as clocks, timers and counters have it: 59s, 1m 05s, 12:04 PM, 3.1k tokens, 40 %, 5 seconds.
_COUNTED = re.compile(r"\d[\d.,:]*(?:\s?[^\W\d_]{1,3}(?![^\W\d_]))?(?:\s?(?:second|minute|hour|token)s?(?![^\W\d_]))?")


def pane_shows(pid: int, start_ticks: int) -> dict[str, object]:
    """The helper's call: what that process's tmux pane shows now; two are compared of the same pane and size alone.

    `asks`: what for its last lines ask a person, in words of ours; empty: for nothing. `works`: they show a turn that
    goes on.

    Raises OwnerCallFailed: `no_pane` where it sits in none; `left` when the pane shows what is neither it nor its
    child; `tmux` when the server does not answer.
    """
    until = time.monotonic() + LOOKING
    main = pane_lookup.stat_of(pid)
    if not main.device:
        raise OwnerCallFailed("no_pane", "it has no terminal at all")
    pane, seen = panes.found(pid, start_ticks, {"terminal": "tmux"}, until)
    if seen.device != main.device:
        raise OwnerCallFailed("no_pane", f"it does not write to {panes.words(pane)} itself")
    if main.foreground != main.group and all(one.pid != pid for one in pane_lookup.above(main.foreground)):
        raise OwnerCallFailed("left", f"{panes.words(pane)} shows another program")
    with panes.server_of(pane) as server:
        text = TERMINALS[pane.terminal].screen(server, pane.pane, 0, until)
    digest = hashlib.blake2b(essence(text).encode(), digest_size=16).hexdigest()
    asks = {"asks": asked(text) or "", "works": works(text)}
    return {"pane": pane.pane, "size": seen.size, "shows": digest, **asks}


def first_prompt(pid: int, start_ticks: int) -> dict[str, str]:
    """The helper's call, of an agent that has not spoken: `waits`, why it may only wait for its first prompt; or empty.

    Its program, if it is known, was started without one; or it shows its prompt. Codex and opencode run no hook before
    that. Raises OwnerCallFailed (`left`).
    """
    main = pane_lookup.stat_of(pid)
    if main.ticks != start_ticks:
        raise OwnerCallFailed("left", f"pid {pid} has been reused by another process")
    known = pane_lookup.vendor_at(main) if main.device else None
    if known is None or not pane_lookup.reads_terminal(known[1]):  # else its prompt comes from what it reads
        return {"waits": ""}
    vendor, _, argv = known
    if is_unprompted(vendor, argv):
        return {"waits": f"{vendor} was started without one"}
    with suppress(OwnerCallFailed):
        pane, _ = panes.found(pid, start_ticks, {"terminal": "tmux"}, time.monotonic() + LOOKING)
        with panes.server_of(pane) as server:
            if panes.shows_draft(server, pane) is not None:
                return {"waits": f"{panes.words(pane)} shows the prompt of {vendor}"}
    return {"waits": ""}


def essence(text: str) -> str:
    """The letters of what a pane shows, without numbers and their units.

    What else is drawn in turn (blinking words) comes again: the comparison remembers what was there before.
    """
    return "".join(filter(str.isalpha, _COUNTED.sub("", text)))
