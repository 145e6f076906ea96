"""Operations on panes: find an agent's pane, capture its last screen, type into it, close it.

1. A process is in a pane if the pane's first process is itself or an ancestor. The pane is found while the agent lives;
   then it is identified by its server (socket, pid, start ticks), its name there, and its first process.
2. Keys are typed only if the agent itself reads them: its terminal is the pane's, it is in the foreground, and no
   person is scrolling. Otherwise a shell or an editor would get them. All of this is checked again before each key.
   Nothing is typed at a question (`core.permission_prompts`): most take Enter for a yes. Into a known program nothing
   is typed except at its empty prompt (`core.drafts`): Enter would send a person's draft.
3. A pane is closed only if it was made for the agent (`Pane.own`) and no other process is in it. The proof is that it
   is no longer listed, whatever the program answered.
4. A terminal is queried only on behalf of a process all of whose four uids are this one: while it runs a set-uid
   program it is another user's. Root's helper queries root's terminals only for what root started in them.
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

FINDING = 2.5  # seconds for all servers together; a living tmux answers in 5 ms, `kitty @` takes half a second or more
LOOKING = 1.5  # seconds for a last screen: a kill waits for it
SECONDS = 3.0  # for one word to a terminal when a pane is closed or typed into
SETTLING = 1.0  # seconds for the agent's launchers to exit after it; and for a closed pane to disappear
AGAIN = 0.05  # seconds between two checks
ABOVE = 100  # scrollback lines that are read too: a secret whose end is shown may begin there
BETWEEN = 0.2  # seconds between two keys: programs take simultaneous input for a paste, including Enter
CLEARS = 3  # how often the key that clears a draft is typed: during a turn the first one may only stop that
CLEARING = 1.0  # seconds for a program to show that its draft is gone
LINES, LINE = 40, 160  # last lines of a screen, and characters per line, that are kept


@dataclass(frozen=True, slots=True)
class Closed:
    """The result for a pane: done, gone (nothing to do), kept, or failed; then `retry` is the command for a person."""

    outcome: str
    message: str
    retry: str = ""


def pane_find(pid: int, start_ticks: int, told: dict[str, str]) -> dict[str, object]:
    """A helper call: the pane that a process is in, as `base.pane_json`.

    `told`: its pane according to the program that started it (terminal, server, pane or session), or empty. Raises as
    `found`.
    """
    return base.pane_json(found(pid, start_ticks, told, time.monotonic() + FINDING)[0])


def pane_screen(pid: int, start_ticks: int, pane: dict[str, object]) -> dict[str, object]:
    """A helper call: the last lines of a pane, without what `hide_secrets` recognises.

    `pane`: as it was found, else as it was reported. Raises as `found`.
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
    # Of a key whose start is not in the text only the end is recognised: half a secret looks like any other word.
    rows = hide_secrets(text).rpartition("PRIVATE KEY-----")[2].splitlines()
    height = int(seen.size.partition("x")[2] or LINES)
    lines = [line.rstrip()[:LINE] for line in rows[-height:] if line.strip()]
    return {"pane": base.pane_json(known), "lines": lines[-LINES:]}


def type_keys(pid: int, start_ticks: int, keys: list[str], clear: bool = False) -> dict[str, object]:
    """A helper call: type text and keys in tmux(1)'s notation (`Enter`, `C-c`) into the pane of that process.

    `clear`: first clear a draft in the prompt of a known program, by that program's own key; otherwise the draft stays
    and nothing is typed. A process that exits after one key gets no further ones; that is not a failure.

    Raises OwnerCallFailed: `no_pane` if it is in none; `left` if the pane is used otherwise, before the first key or
    between two; before the first one `asks` if it shows a question, `draft` if its prompt contains a draft,
    `no_prompt` if a known program does not show its prompt; the name of a terminal that does not answer.
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
    """Type one key and return its pane; `before`: the pane of the previous key."""
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
    """Close the pane of an agent that is proved dead; a repetition returns `gone`.

    1. Its server must be the one on which it was found, and must list it with the same first process.
    2. It must have been made for the agent and contain only the agent's launchers, which get a moment to exit.
    3. Close it, and check until it is no longer listed.
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
            if time.monotonic() > deadline:  # before that it may be closing by itself
                retry = "" if error.reason == "hidden" else retry  # the command would reach no pane, or another one
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
    """Check until it is no longer listed. A server that exits with its last pane may give odd answers meanwhile."""
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
    """The result for a reported pane in which the agent was never found: it is not closed."""
    terminal, name, pane = (str(told.get(key) or "") for key in ("terminal", "server", "pane"))
    said = f"{terminal} pane {pane or told.get('session') or '?'}"
    known = TERMINALS.get(terminal)
    retry = known.retry(name, pane) if known is not None and pane else ""
    return Closed("kept", f"{said}, reported as its own, was never found to be", retry)


def words(pane: Pane) -> str:
    """A pane's name in messages."""
    return f"{pane.terminal} pane {pane.pane}"


# -- finding


def found(pid: int, start_ticks: int, told: Mapping[str, str], until: float) -> tuple[Pane, ListedPane]:
    """The pane that a process is in, and its listing. `until`: monotonic seconds. Raises OwnerCallFailed.

    `no_pane`; `left`: the process has exited; `not_ours`: it currently runs as another user; else the name of a
    terminal that does not answer.
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
    """The pane lists of all servers where the pane of a process may be, or the error of each.

    Servers named in its environment come first, as another one that hangs takes all the time.
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
    """The index, among a process and its ancestors, of the pane's first process; by device it is the session leader."""
    if seen.dead:
        return None
    for index, one in enumerate(line):
        if one.pid == seen.pid or (not seen.pid and seen.device == one.device != 0 and one.session == one.pid):
            return index
    return None


def _is_meant(seen: ListedPane, told: Mapping[str, str]) -> bool:
    """Whether it is the reported pane. tmux replaces `.` and `:` in a session's name by `_`."""
    if told.get("pane"):
        return seen.pane == told["pane"]
    session = told.get("session", "")
    return not session or session in seen.sessions or re.sub("[.:]", "_", session) in seen.sessions


def _now(pane: Pane, until: float) -> ListedPane | None:
    """The pane as its server lists it now; None: no longer. Raises OwnerCallFailed.

    `no_pane`: its server is gone, even if another listens there now; `another`: another process has the pane;
    `hidden`: its server is alive, but no server or another one listens at its socket; else it does not answer.
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
    """Exactly the server on which a pane was found, held during the context. Raises as `_now`."""
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
        return False  # it has exited, and its terminal does not know yet


def _in_use(pane: Pane, seen: ListedPane) -> str:
    """Describe processes, other than the agent's launchers, or a person, that use the pane; or empty."""
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
    """Raise unless the agent or its descendant is in the foreground: otherwise a person's own pane shows their text."""
    if pane_lookup.stat_of(pid).ticks != start_ticks:
        raise OwnerCallFailed("left", f"pid {pid} has been reused by another process")
    foreground = pane_lookup.stat_of(pane.pid).foreground
    inside = {pid, *(one for one, _ in pane.chain if one != pane.pid and not is_prompt(pane_lookup.words_of(one)))}
    groups = {pane_lookup.stat_of(one).group for one in inside}
    if foreground not in groups and inside.isdisjoint(one.pid for one in pane_lookup.above(foreground)):
        raise OwnerCallFailed("left", f"{words(pane)} shows another program")


def _refuse_foreign(line: list[pane_lookup.PaneProcess]) -> None:
    """Raise OwnerCallFailed (`not_ours`) unless all uids of these processes are this one."""
    for one in line:
        found = pane_lookup.uids(one.pid)
        if found != {os.geteuid()}:
            raise OwnerCallFailed("not_ours", f"pid {one.pid} runs as uid {', '.join(map(str, sorted(found)))} now")


def _free_prompt(server: base.TerminalServer, pane: Pane, vendor: str, *, clear: bool) -> None:
    """Raise unless the prompt of that vendor's program is empty; with `clear` empty it first."""
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
    """Whether its prompt contains a draft; None: no known prompt, or the terminal cannot report the cursor."""
    cursor = TERMINALS[pane.terminal].cursor
    return None if cursor is None else draft(*cursor(server, pane.pane, time.monotonic() + SECONDS))


def _refuse_questions(server: base.TerminalServer, pane: Pane) -> None:
    question = asked(TERMINALS[pane.terminal].screen(server, pane.pane, 0, time.monotonic() + SECONDS))
    if question:
        raise OwnerCallFailed("asks", f"{words(pane)} shows {question}, which would get the keys")
