"""sd_notify datagrams: an agent's messages as *words* that the daemon, `run` and `beat` share.

A datagram (sd_notify(3)) becomes fields, fields become *words*: a flat dictionary with the keys that `POST
/v1/agents/ID/beat` takes. `core.beat` turns words into a `core.agent.Beat`; the resident `run` only passes them on.
This file is imported by `run`, and each agent has one: it must not import anything that costs memory (no dataclass,
enum, datetime, re).
"""

MAX_BYTES = 4096  # our own limit; a beat is short, and an agent's text is quoted in evidence
MAX_TEXT = 500  # characters of a note, a tool's name, a status
MAX_SECONDS = 366 * 86400.0  # longer means the same: `wait_limit` caps it anyway
STATES = ("working", "idle", "waiting", "blocked", "done")  # the values of `core.agent.State`; a test compares them

Words = dict[str, str | float | bool]


def parse_datagram(data: bytes) -> dict[str, str]:
    """Split one datagram into its `KEY=VALUE` lines; the first value of a key counts, lines without `=` are skipped.

    Empty if it is not an sd_notify message (longer than MAX_BYTES, a NUL in it, not UTF-8): to be dropped and counted.
    Receive with room for MAX_BYTES + 1, or a truncated message looks complete.
    """
    if len(data) > MAX_BYTES or b"\0" in data:
        return {}
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return {}
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, value = line.partition("=")
        if equals:
            fields.setdefault(key, value)
    return fields


def words_of(fields: dict[str, str], *, from_main: bool) -> Words | None:
    """The words in the fields, or None when they hold none (`BARRIER=1`, `MAINPID=`, a value out of range).

    `from_main`: sent by the agent's main process; only then systemd's own fields count (`READY=1`, `STATUS=`,
    `STOPPING=1`, `EXTEND_TIMEOUT_USEC=`, `WATCHDOG_USEC=`), because any child that is itself a service sends them about
    itself. The first three promise nothing. `WATCHDOG=1` counts from any process of the tree. `X_AGENT_SIGN=1` comes
    from a vendor hook that found no daemon: a sign of life, which promises nothing either, of the agent or of a
    subagent (`X_AGENT_THREAD=`), with whether work that it started continues (`X_AGENT_GOES_ON=`).
    """
    words = _promising_words(fields, from_main=from_main)
    sign = fields.get("X_AGENT_SIGN") == "1"
    promises = bool(words) and not sign
    if sign and fields.get("X_AGENT_THREAD"):
        words["thread"] = printable(fields["X_AGENT_THREAD"])
    if words and fields.get("X_AGENT_GOES_ON") in ("0", "1"):
        words["goes_on"] = fields["X_AGENT_GOES_ON"] == "1"
    if fields.get("WATCHDOG") == "1":
        promises = True
        words.setdefault("state", "working")
    counts = promises or sign
    if from_main:
        if fields.get("STATUS"):
            words.setdefault("note", printable(fields["STATUS"]))
            counts = True
        if fields.get("STOPPING") == "1":
            words["state"] = "done"
            counts = True
        counts = counts or fields.get("READY") == "1"
    if not counts:
        return None
    words["promises"] = promises
    return words


def _promising_words(fields: dict[str, str], *, from_main: bool) -> Words:
    words: Words = {}
    if fields.get("X_AGENT_STATE") in STATES:
        words["state"] = fields["X_AGENT_STATE"]
    progress = _number(fields.get("X_AGENT_PROGRESS"))
    if progress is not None:
        words["progress"] = progress
    lease = _seconds(fields.get("X_AGENT_SILENT_FOR"))
    if lease is None and from_main:
        lease = _seconds(fields.get("EXTEND_TIMEOUT_USEC"), per_second=1e6)
    if lease is not None:
        words["silent_for_seconds"] = lease
    if "X_AGENT_TOOL" in fields:
        words["tool"] = printable(fields["X_AGENT_TOOL"])
    limit = _seconds(fields.get("X_AGENT_TOOL_LIMIT"))
    if limit is not None:
        words["tool_limit_seconds"] = limit
    if fields.get("X_AGENT_NOTE"):
        words["note"] = printable(fields["X_AGENT_NOTE"])
    after = _seconds(fields.get("WATCHDOG_USEC"), per_second=1e6) if from_main else None
    if after:  # zero would mean "stalled at once"
        words["after_seconds"] = after
    return words


def merge_words(old: Words, new: Words, elapsed: float) -> Words:
    """One beat equivalent to `old` followed, `elapsed` seconds later, by `new`.

    A state, lease, tool or note of `old` that `new` does not mention stays; the rest of a lease or of a tool's limit
    counts from `new` on.
    """
    merged = dict(old)
    for key in ("silent_for_seconds", "tool_limit_seconds"):
        left = merged.get(key)
        if isinstance(left, float | int):
            merged[key] = max(0.0, left - elapsed)
    if "tool" in new:
        merged.pop("tool_limit_seconds", None)
    if new.get("state") == "working" and merged.get("goes_on"):
        del merged["goes_on"]  # a working agent will report again what it leaves running
    merged.update(new)
    merged["promises"] = bool(old.get("promises")) or bool(new.get("promises"))
    return merged


def printable(text: str) -> str:
    """At most MAX_TEXT characters, without any that move a cursor or break a line when shown."""
    return "".join(c if c.isprintable() else " " for c in text[:MAX_TEXT])


def _number(text: str | None) -> float | None:
    """A finite decimal number, else None (float() alone accepts `nan`, `inf` and `1_0`)."""
    if text is None or len(text) > 40 or not text.isascii() or "_" in text:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number - number == 0 else None


def _seconds(text: str | None, per_second: float = 1.0) -> float | None:
    number = _number(text)
    if number is None or number < 0:
        return None
    return min(number / per_second, MAX_SECONDS)
