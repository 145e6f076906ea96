"""What is done with panes: find the one that an agent sits in, keep its last screen, type into it, have it closed.

1. A process sits in a pane when the pane's first process is itself or above it. It is found while the agent lives; from
   then on the pane is known by its server (socket, pid, start ticks), its name there, and its first process.
2. Keys are typed only into what the agent itself reads: its terminal is the pane's, it runs in the foreground, nobody
   scrolls there. Else a shell or an editor would get them. All of it is checked again before each key. Nothing is
   typed below a question (`core.permission_prompts`): most take Enter for a yes. Into a program that is known nothing
   is typed but at its empty prompt (`core.drafts`): Enter would send what a person has written there.
3. A pane is closed only if it was made for the agent (`Pane.own`), and no other process is in it. Then it is looked
   for once more: that it is not listed any more is the proof, whatever the program said of its closing.
4. A terminal is asked on behalf of a process of this uid alone, one that is so by all four of its uids: in the middle
   of a set-uid program it is another's. Root's helper asks root's terminals only for what root started in them.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from watchdog.core.drafts import draft
from watchdog.core.permission_prompts import asked
from watchdog.core.redaction import hide_secrets
from watchdog.core.vendors import CLEAR_KEYS, is_prompt
from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals import TERMINALS, base, pane_lookup
from watchdog.owner.terminals.base import ListedPane, Pane

FINDING = (
    2.5  # seconds, for all servers together; a living tmux answers in 5 ms, `kitty @` takes half a second and more
)
LOOKING = 1.5  # seconds for a last screen: a kill waits for it
SECONDS = 3.0  # for one word to a terminal when a pane is closed or typed into
SETTLING = 1.0  # seconds that what started the agent has to end after it; and a pane to go that was closed
AGAIN = 0.05  # seconds between two looks
ABOVE = 100  # lines above a screen that are looked at: a secret may begin there whose end is shown
BETWEEN = 0.2  # seconds between two keys: programs take what comes at once for a paste, and Enter for a part of it
CLEARS = 3  # times that the key which clears a draft is typed: one of a turn at work may only stop that
CLEARING = 1.0  # seconds for a program to show that its draft is gone
LINES, LINE = 40, 160  # of a screen, the last ones: lines and characters of a line that are kept


@dataclass(frozen=True, slots=True)
class Closed:
    """What became of a pane: done, gone (nothing to do), kept, or failed; then `retry` is what a person may type."""

    outcome: str
    message: str
    retry: str = ""


def pane_find(pid: int, start_ticks: int, told: dict[str, str]) -> dict[str, object]:
    """The helper's call: the pane that a process sits in, as `base.pane_json`.

    `told`: what the program that started it says of its pane (terminal, server, pane or session), or nothing. Raises
    as `found`.
    """
    return base.pane_json(found(pid, start_ticks, told, time.monotonic() + FINDING)[0])


def pane_screen(pid: int, start_ticks: int, pane: dict[str, object]) -> dict[str, object]:
    """The helper's call: the last lines that a pane shows, without what `hide_secrets` knows.

    `pane`: as it was found, else what was reported of it. Raises as `found`.
    """
    until = time.monotonic() + LOOKING
    seen: ListedPane | None
    if "server_pid" in pane:
        known = base.pane_of(pane)
        seen = _now(known, until)
        if seen is None:
            raise OwnerCallFailed("no_pane", f"{words(known)} is closed")
    else:
        known, seen = found(pid, start_ticks, {key: str(word) for key, word in pane.items()}, until)
    if not known.own:
        _refuse_persons_words(pid, start_ticks, known)
    with server_of(known) as server:
        text = TERMINALS[known.terminal].screen(server, known.pane, ABOVE, until)
    # Of a key whose begin has left the screen only its end is known: half a secret looks like any other word.
    rows = hide_secrets(text).rpartition("PRIVATE KEY-----")[2].splitlines()
    height = int(seen.size.partition("x")[2] or LINES)
    lines = [line.rstrip()[:LINE] for line in rows[-height:] if line.strip()]
    return {"pane": base.pane_json(known), "lines": lines[-LINES:]}


def type_keys(pid: int, start_ticks: int, keys: list[str], clear: bool = False) -> dict[str, object]:
    """The helper's call: type words and keys as tmux(1) names them (`Enter`, `C-c`) into the pane of that process.

    `clear`: a draft in the prompt of a program that is known is cleared first, by that program's own key; else it is
    left as it is, and nothing is typed.

    A process that exits at one key gets no further ones: that is no failure.

    Raises OwnerCallFailed: `no_pane` where it sits in none; `left` when the pane is in another use, before the first
    key or between two; before the first one `asks` when it shows a question, `draft` when a draft stands in its prompt,
    `no_prompt` when a program that is known does not show its prompt; the name of a terminal that does not answer.
    """
    pane: Pane | None = None
    for number, key in enumerate(keys):
        if number:
            time.sleep(BETWEEN)
        try:
            pane = _type_one(pid, start_ticks, key, pane, clear=clear)
        except OwnerCallFailed:
            if pane is None or pane_lookup.lives(pid, start_ticks):
                raise
            break  # the keys before this one were enough
    return {"pane": pane.pane, "terminal": pane.terminal} if pane is not None else {"pane": "", "terminal": ""}


def _type_one(pid: int, start_ticks: int, key: str, before: Pane | None, *, clear: bool) -> Pane:
    """One key, and the pane that it went to; `before`: the one that the former key went to."""
    pane, seen = found(pid, start_ticks, {}, time.monotonic() + SECONDS)
    if before is not None and (pane.server_pid, pane.pane) != (before.server_pid, before.pane):
        raise OwnerCallFailed("left", f"it has left {words(before)}")
    main = pane_lookup.stat_of(pid)
    _refuse_other_readers(main, pane, seen)
    with server_of(pane) as server:
        if before is None:
            _refuse_questions(server, pane)
            known = pane_lookup.vendor_at(main)
            if known is not None:
                _free_prompt(server, pane, known[0], clear=clear)
        TERMINALS[pane.terminal].write(server, pane, key, time.monotonic() + SECONDS)
    return pane


def close(pane: Pane) -> Closed:
    """Close the pane of an agent that is proved dead; a second time it is gone.

    1. Its server is the one that it was found on, and lists it with the same first process.
    2. It was made for the agent, and only what had started the agent is in it; that has a moment to end.
    3. Close it, and look until it is not listed any more.
    """
    terminal = TERMINALS[pane.terminal]
    retry = terminal.retry(pane.server, pane.pane)
    trouble = users = ""
    deadline = time.monotonic() + SETTLING
    while True:
        try:
            seen = _now(pane, time.monotonic() + SECONDS)
            if seen is None:
                return Closed("gone", f"{words(pane)} went with its agent")
            users = "" if not pane.own else _in_use(pane, seen)
            if not users or time.monotonic() > deadline:
                break
        except OwnerCallFailed as error:
            if error.reason in ("no_pane", "another"):
                return Closed("gone" if error.reason == "no_pane" else "kept", f"{words(pane)}: {error}")
            if time.monotonic() > deadline:  # else it may be ending itself
                retry = "" if error.reason == "hidden" else retry  # it would reach no pane, or a stranger's
                return Closed("failed", f"{words(pane)} cannot be looked at: {error}", retry)
        time.sleep(AGAIN)
    if not pane.own:
        return Closed(
            "kept",
            f"{words(pane)} was left open: it was not made for the agent (its first process is pid {pane.pid}, your"
            " shell, perhaps)",
        )
    if users:
        return Closed("kept", f"{words(pane)} stays: in use by {users}")
    try:
        with server_of(pane) as server:
            terminal.close(server, pane, time.monotonic() + SECONDS)
    except OwnerCallFailed as error:
        trouble = f": {error}"
    return _proved(pane, trouble, retry)


def _proved(pane: Pane, trouble: str, retry: str) -> Closed:
    """Look until it is not listed any more. A server that goes with its last pane may answer strangely meanwhile."""
    deadline = time.monotonic() + SETTLING
    while True:
        try:
            if _now(pane, time.monotonic() + SECONDS) is None:
                break
            left = f"{words(pane)} is there still{trouble or f', though {pane.terminal} says that it was closed'}"
        except OwnerCallFailed as error:
            if error.reason == "no_pane":
                break
            left = f"whether {words(pane)} is closed cannot be looked at: {error}{trouble}"
            retry = "" if error.reason == "hidden" else retry
        if time.monotonic() > deadline:
            return Closed("failed", left, retry)
        time.sleep(AGAIN)
    return Closed("done", f"closed {words(pane)}")


def never_found(told: Mapping[str, object]) -> Closed:
    """A pane that was reported, and in which its agent was never found: nothing is closed for that."""
    terminal, name, pane = (str(told.get(key) or "") for key in ("terminal", "server", "pane"))
    said = f"{terminal} pane {pane or told.get('session') or '?'}"
    known = TERMINALS.get(terminal)
    retry = known.retry(name, pane) if known is not None and pane else ""
    return Closed("kept", f"{said}, reported as its own, was never found to be", retry)


def words(pane: Pane) -> str:
    """A pane for people."""
    return f"{pane.terminal} pane {pane.pane}"


# -- looking


def found(pid: int, start_ticks: int, told: Mapping[str, str], until: float) -> tuple[Pane, ListedPane]:
    """The pane that a process sits in, and how it is listed. `until`: monotonic seconds. Raises OwnerCallFailed.

    `no_pane`; `left`: the process has ended; `not_ours`: it runs as another user just now; else the name of a terminal
    that does not answer.
    """
    line = pane_lookup.above(pid)
    if line[0].ticks != start_ticks:
        raise OwnerCallFailed("left", f"pid {pid} has been reused by another process")
    _refuse_foreign(line[:1])
    if not line[0].device and not told:
        raise OwnerCallFailed("no_pane", "it sits in no tmux pane, it has no terminal at all")
    trouble: OwnerCallFailed | None = None
    for name, server, listed in _everywhere(pid, told, until):
        if isinstance(listed, OwnerCallFailed):
            if listed.reason != "no_pane":
                trouble = trouble or listed
            continue
        for seen in listed:
            top = _first_process(line, seen)
            if top is None or not _is_meant(seen, told):
                continue
            if os.geteuid() == 0:
                _refuse_foreign(line[: top + 1])
            between = line[1 : top + 1]
            if told:
                own = not any(is_prompt(pane_lookup.words_of(one.pid)) for one in between)
            else:
                own = all(
                    pane_lookup.is_waiting(one) and not is_prompt(pane_lookup.words_of(one.pid)) for one in between
                )
            chain = tuple((one.pid, one.ticks) for one in between)
            at = server.socket, seen.pane, server.pid, server.ticks, line[top].pid, line[top].ticks, seen.window
            return Pane(name, *at, "".join(seen.sessions[:1]), chain, own), seen
    if trouble is not None:
        raise trouble
    raise OwnerCallFailed("no_pane", "it sits in no tmux pane, and in no kitty or wezterm that it names")


def _everywhere(
    pid: int, told: Mapping[str, str], until: float
) -> Iterator[tuple[str, base.TerminalServer, list[ListedPane] | OwnerCallFailed]]:
    """The lists of all servers where the pane of a process may be, or why there is none.

    Those that it names come first: another one that hangs takes all the time.
    """
    names = tuple(one for terminal in TERMINALS.values() for one in terminal.variables)
    variables = pane_lookup.environment(pid, names)
    for name, terminal in sorted(TERMINALS.items(), key=lambda item: item[1].variables[0] not in variables):
        if told.get("terminal", name) != name:
            continue
        for socket in terminal.servers(variables, told.get("server", "")):
            try:
                with base.reached(socket) as server:
                    listed = terminal.panes(server, until)
            except OwnerCallFailed as error:
                yield name, base.TerminalServer(socket, 0, 0), error
            else:
                yield name, server, listed


def _first_process(line: list[pane_lookup.PaneProcess], seen: ListedPane) -> int | None:
    """Which of a process and its ancestors is the first one of that pane; by the device it is its session's leader."""
    if seen.dead:
        return None
    for index, one in enumerate(line):
        if one.pid == seen.pid or (not seen.pid and seen.device == one.device != 0 and one.session == one.pid):
            return index
    return None


def _is_meant(seen: ListedPane, told: Mapping[str, str]) -> bool:
    """Whether it is the pane that was reported. tmux keeps `_` for `.` and `:` of a session's name."""
    if told.get("pane"):
        return seen.pane == told["pane"]
    session = told.get("session", "")
    return not session or session in seen.sessions or re.sub("[.:]", "_", session) in seen.sessions


def _now(pane: Pane, until: float) -> ListedPane | None:
    """The pane as its server lists it now; None: not any more. Raises OwnerCallFailed.

    `no_pane`: its server has gone, whoever may listen there now; `another`: another process has the pane; `hidden`:
    its server lives, and none or another one listens in its place; else it does not answer.
    """
    with server_of(pane) as server:
        listed = TERMINALS[pane.terminal].panes(server, until)
    for seen in listed:
        if seen.pane == pane.pane:
            replaced = not seen.dead and bool(seen.pid) and not pane_lookup.lives(pane.pid, pane.ticks)
            if seen.pid not in (0, pane.pid) or (replaced and _is_another(pane)):
                raise OwnerCallFailed("another", "another process was started in it")
            return seen
    return None


@contextmanager
def server_of(pane: Pane) -> Iterator[base.TerminalServer]:
    """The very server on which a pane was found, held as long as the context lasts. Raises as `_now`."""
    if not pane_lookup.lives(pane.server_pid, pane.server_ticks):
        raise OwnerCallFailed("no_pane", "its server has gone")
    lives = f"its server, pid {pane.server_pid}, lives"
    with ExitStack() as stack:
        try:
            server = stack.enter_context(base.reached(pane.server))
        except OwnerCallFailed as error:
            reason = "hidden" if error.reason == "no_pane" else error.reason
            raise OwnerCallFailed(reason, f"{lives}, but {error}") from error
        if (server.pid, server.ticks) != (pane.server_pid, pane.server_ticks):
            raise OwnerCallFailed("hidden", f"{lives}, and another one listens at {pane.server}")
        yield server


def _is_another(pane: Pane) -> bool:
    """Whether the pid of its first process has been reused."""
    try:
        return pane_lookup.stat_of(pane.pid).ticks != pane.ticks
    except OwnerCallFailed:
        return False  # it has ended, and its terminal does not know yet


def _in_use(pane: Pane, seen: ListedPane) -> str:
    """The processes in a pane beside what started the agent, which so use it; in words, or nothing."""
    if seen.read:
        return "a person who reads in it"
    if seen.typed:
        return "a person who types in it"
    if seen.dead:
        return ""
    chain = [one for one in pane.chain if pane_lookup.lives(*one)]
    busy = [pane_lookup.stat_of(pid) for pid, _ in chain if pid != pane.pid]
    users = [one for one in busy if not pane_lookup.is_waiting(one)]
    first = pane.pid if pane_lookup.lives(pane.pid, pane.ticks) else 0
    users += pane_lookup.others(first, seen.device, frozenset(pane.chain) | {(pane.pid, pane.ticks)})
    return ", ".join(f"{one.name}[{one.pid}]" for one in users[:5])


def _refuse_other_readers(main: pane_lookup.PaneProcess, pane: Pane, seen: ListedPane) -> None:
    if not seen.device or seen.device != main.device:
        raise OwnerCallFailed("no_pane", f"it does not read from {words(pane)} itself")
    if main.foreground != main.group:
        raise OwnerCallFailed("left", f"{words(pane)} shows another program, which would get the keys")
    if seen.busy:
        raise OwnerCallFailed("left", f"{words(pane)}: {seen.busy}")


def _refuse_persons_words(pid: int, start_ticks: int, pane: Pane) -> None:
    """What a person's own pane shows is the agent's only while that one, or what it started, has the foreground."""
    if pane_lookup.stat_of(pid).ticks != start_ticks:
        raise OwnerCallFailed("left", f"pid {pid} has been reused by another process")
    foreground = pane_lookup.stat_of(pane.pid).foreground
    inside = {pid, *(one for one, _ in pane.chain if one != pane.pid and not is_prompt(pane_lookup.words_of(one)))}
    groups = {pane_lookup.stat_of(one).group for one in inside}
    if foreground not in groups and inside.isdisjoint(one.pid for one in pane_lookup.above(foreground)):
        raise OwnerCallFailed("left", f"{words(pane)} shows another program")


def _refuse_foreign(line: list[pane_lookup.PaneProcess]) -> None:
    """Raises OwnerCallFailed (`not_ours`) unless all uids of these processes are this one."""
    for one in line:
        found = pane_lookup.uids(one.pid)
        if found != {os.geteuid()}:
            raise OwnerCallFailed("not_ours", f"pid {one.pid} runs as uid {', '.join(map(str, sorted(found)))} now")


def _free_prompt(server: base.TerminalServer, pane: Pane, vendor: str, *, clear: bool) -> None:
    """See that nothing stands in the prompt of that vendor's program; with `clear` make it so."""
    for left in range(CLEARS, -1, -1):
        stands = shows_draft(server, pane)
        if stands is None:
            raise OwnerCallFailed("no_prompt", f"{words(pane)} shows no prompt of {vendor} that is known")
        if not stands:
            return
        if not clear:
            raise OwnerCallFailed("draft", f"a draft stands in the prompt of {words(pane)}")
        if not left:
            break
        TERMINALS[pane.terminal].write(server, pane, CLEAR_KEYS[vendor], time.monotonic() + SECONDS)
        deadline = time.monotonic() + CLEARING
        while time.monotonic() < deadline and shows_draft(server, pane) is not False:
            time.sleep(AGAIN)
    raise OwnerCallFailed("draft", f"a draft stands in the prompt of {words(pane)}, and {CLEAR_KEYS[vendor]} leaves it")


def shows_draft(server: base.TerminalServer, pane: Pane) -> bool | None:
    """Whether the prompt that it shows holds a draft; None: no prompt is known there, or the terminal cannot tell."""
    cursor = TERMINALS[pane.terminal].cursor
    return None if cursor is None else draft(*cursor(server, pane.pane, time.monotonic() + SECONDS))


def _refuse_questions(server: base.TerminalServer, pane: Pane) -> None:
    question = asked(TERMINALS[pane.terminal].screen(server, pane.pane, 0, time.monotonic() + SECONDS))
    if question:
        raise OwnerCallFailed("asks", f"{words(pane)} shows {question}, which would get the keys")
