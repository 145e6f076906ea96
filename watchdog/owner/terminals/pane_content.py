"""Hashes what an agent's tmux pane shows, and checks whether it asks a person; the text itself goes nowhere else.

A stalled agent's spinner, clock and counters keep changing. Their glyphs and formats change with each version, so only
what they are not drawn with is compared: letters, except those of a number's unit.
"""

import hashlib
import re
import time
from contextlib import suppress

from watchdog.core.permission_prompts import asked, works
from watchdog.core.vendors import is_unprompted
from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals import TERMINALS, pane_lookup, panes

LOOKING = 2.0  # seconds in all; a living tmux answers in 5 ms
# A number with its unit, as in clocks, timers and counters: 59s, 1m 05s, 12:04 PM, 3.1k tokens, 40 %, 5 seconds.
_COUNTED = re.compile(r"\d[\d.,:]*(?:\s?[^\W\d_]{1,3}(?![^\W\d_]))?(?:\s?(?:second|minute|hour|token)s?(?![^\W\d_]))?")


def pane_shows(pid: int, start_ticks: int) -> dict[str, object]:
    """A helper call: what that process's tmux pane shows; results are comparable only for the same pane and size.

    `asks`: what its last lines ask a person for, in our own words; empty: nothing. `works`: they show a running turn.

    Raises OwnerCallFailed: `no_pane` if it is in none; `left` if the pane shows neither it nor a descendant; `tmux` if
    the server does not answer.
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
    """A helper call for an agent that has not beaten: `waits`, why it may be waiting for its first prompt; or empty.

    Either its program, if known, was started without a prompt, or it shows its prompt. Codex and opencode run no hook
    before the first prompt. Raises OwnerCallFailed (`left`).
    """
    main = pane_lookup.stat_of(pid)
    if main.ticks != start_ticks:
        raise OwnerCallFailed("left", f"pid {pid} has been reused by another process")
    known = pane_lookup.vendor_at(main) if main.device else None
    if known is None or not pane_lookup.reads_terminal(known[1]):  # otherwise its prompt comes from its stdin
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
    """The letters in a pane's text, without numbers and their units.

    Other periodic changes (blinking words) repeat: the comparison remembers earlier contents.
    """
    return "".join(filter(str.isalpha, _COUNTED.sub("", text)))
