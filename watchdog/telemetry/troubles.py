"""The daemon's own recent errors, for `status` and `doctor`: the person on call need not read the log for them.

Each warning and error of the catalogue belongs to one of four groups, and a test checks that: it is kept here until the
event that ends it, or for a while if there is none; or a fact of `status` shows it already; or it is about one agent,
and `why` shows it; or it requires no action. The troubles are lost with the daemon: the next one logs a lasting fault
again.
"""

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from watchdog.clock import Clock
from watchdog.core.redaction import hide_secrets
from watchdog.telemetry.catalogue import CATALOGUE, ERROR

HOUR, DAY = 3600.0, 86_400.0
MOST = 50  # troubles kept; of more the oldest are dropped
LONGEST = 400  # characters of a field's text


@dataclass(frozen=True, slots=True)
class TroubleKind:
    """How one event is kept. `keys` distinguish two troubles of one event; the event that ends it has the same."""

    says: str  # with the fields of the event
    keys: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    fades: float | None = HOUR  # seconds after which it is forgotten; None: only another event ends it
    section: str = ""  # of the configuration: a reload that changes it also ends this
    remedies: tuple[tuple[str, str], ...] = ()  # (part of the text, remedy); otherwise the catalogue's remedy
    only: tuple[str, str] | None = None  # a field and its value: other events of that name are no trouble
    named: tuple[str, ...] = ()  # fields that name its entry of `section`: only a reload without that entry ends it


KEPT: dict[str, TroubleKind] = {
    "metrics.failed": TroubleKind(
        "nothing is served at [metrics] listen = {listen}: {error}",
        ("listen",),
        ("metrics.listening",),
        None,
        "metrics",
        (
            (
                "already in use",
                "another program listens there: `ss -ltnp` (as root) shows which; stop it, or use another port",
            ),
            ("Permission denied", "a port below 1024 is root's: use another port in [metrics] listen"),
            ("assign requested", "this host has no such address (`ip address`): use another one in [metrics] listen"),
            ("Address family", "the unit lacks the drop-in for TCP: systemd/network.conf"),
        ),
    ),
    "notify.failed": TroubleKind(
        "the command of [notify] failed for {about}: {why}",
        (),
        ("notify.recovered",),
        None,
        "notify",
        (
            (
                "No such file",
                "create the program that it names, or correct [notify] command, then agent-watchdog reload",
            ),
            ("Permission denied", "let the daemon's uid execute the program that it names (chmod +x, each directory)"),
        ),
    ),
    "notify.dropped": TroubleKind(
        "events were not passed on to [notify]: {why}", (), ("notify.recovered",), HOUR, "notify"
    ),
    "source.unread": TroubleKind(
        "the [[source]] {source} at {path} cannot be read: {why}",
        ("source", "path"),
        ("source.readable",),
        None,
        "source",
        named=("source", "path"),
    ),
    "sweep.failed": TroubleKind("sweeps fail: {error}", ("agent_id",), ("sweep.recovered", "agent.ended"), None),
    "sweep.scan_failed": TroubleKind("/proc could not be read: {error}", (), (), DAY),
    "job.failed": TroubleKind("the daemon's job {job} failed: {error}", ("job",), ("job.recovered",), None),
    "kill.failed": TroubleKind("carrying out a kill of {name} failed: {error}", ("agent_id",), ("kill.finished",), DAY),
    "kill.refused": TroubleKind(
        "a safety check blocked a signal to process {pid} of {name}: {why}", ("agent_id",), ("kill.finished",), HOUR
    ),
    "cleanup.hook_failed": TroubleKind(
        "the cleanup hook {hook} failed for {name}: {message}",
        ("agent_id", "hook"),
        ("cleanup.hook_finished",),
        DAY,
        "hook",
        named=("hook",),
    ),
    "cleanup.hook_retried": TroubleKind(
        "the cleanup hook {hook} ran out of time for {name} in try {attempt} and is tried again: {message}",
        ("agent_id", "hook"),
        ("cleanup.hook_finished", "cleanup.hook_failed"),
        DAY,
        "hook",
        named=("hook",),
        only=("outcome", "timeout"),  # one that failed is tried again within seconds; one that hangs may hang for long
    ),
    "reap.failed": TroubleKind(
        "the reaper could not clean up {what}: {message}", ("kind", "what"), ("reap.finished",), DAY
    ),
    "reap.trouble": TroubleKind("the reaper could not look everywhere: {why}", ("why",), (), DAY),
    "row.quarantined": TroubleKind(
        "a row of the registry, or a file beside it, is unreadable: {why}", ("why",), (), DAY
    ),
    "agent.not_copied": TroubleKind("the copy of a registration could not be written: {error}"),
    "agent.socket_blocked": TroubleKind(
        "heartbeats of {name} cannot reach the daemon: its socket cannot be made: {why}",
        ("agent_id",),
        ("agent.socket_found", "agent.ended"),
        None,
    ),
    "descriptors.exhausted": TroubleKind("no file descriptor is left for connections", (), ("descriptors.back",), None),
    "lock.lost": TroubleKind(
        "{file} was removed or replaced, and cannot be made again: {why}", ("file",), ("lock.renewed",), None
    ),
    "control.lost": TroubleKind("the control socket {socket} was removed", (), ("control.reopened",), None),
    "control.failed": TroubleKind("a request to {route} failed by a fault of the daemon's: {error}", ("route",)),
}
# Already shown by a fact of `status`, which describes the present: its key.
STATE = {
    "config.invalid": "config_problems",
    "call.stuck": "waits_for",
    "process.unreadable": "unreadable",
    "cgroup.refused": "own_cgroup",
    "agent.unkillable": "unkillable",
    "kill.unkillable": "unkillable",
    "kill.waiting": "registry_problem",
    "registry.unavailable": "registry_problem",
    "registry.begun_anew": "holds",
    "hold.started": "holds",
    "disk.reserve_used": "disk_reserve",
    "registry.share_trimmed": "users_over_share",
    "user.limited": "limited",
    "users.unread": "subuid_problems",
    "log.failed": "log",
    "log.lost": "log",
}
# About one agent: `list` and `why` show it.
OF_AGENTS = frozenset(
    {
        *("agent.row_lost", "agent.late", "agent.stalled", "agent.expired", "agent.unknown", "agent.needs_human"),
        *("agent.expires_soon", "agent.wait_capped", "agent.lingering", "agent.told", "agent.beat_file_unread"),
        *("agent.unpinned", "agent.channel_lost", "agent.elsewhere", "agent.taken_over", "agent.crashed"),
        *("agent.nudged", "beat.rejected", "kill.requested", "kill.observed", "kill.held"),
        *("source.entry_kept", "source.entry_gone", "source.drift"),
    }
)
# The daemon ends with it (`doctor` finds its last lines), has repaired it itself, or refused what it should refuse;
# `doctor` checks itself what confines helpers.
PASSED = frozenset(
    {
        *("daemon.runtime_dir_taken", "daemon.failed", "stop.overdue", "stop.unreleased", "scheduler.dead"),
        *("clock.stepped", "clock.gap", "agent.sockets_made_again", "lock.renewed", "control.reopened"),
        *("control.denied", "log.limited", "helper.unconfined", "sweep.overrun"),
    }
)
_ENDED_BY = {
    end: [event for event, kind in KEPT.items() if end in kind.ends] for one in KEPT.values() for end in one.ends
}


@dataclass(slots=True)
class _Trouble:
    event: str
    what: str
    since: datetime
    last: datetime
    mono: float  # of `last`
    name: str  # of the agent that it is about; empty: of none
    named: tuple[str, ...]  # the entry of the configuration that it is about
    count: int = 1


def _remedy(one: _Trouble) -> str:
    found = (todo for part, todo in KEPT[one.event].remedies if part in one.what)
    todo = next(found, CATALOGUE[one.event].act)
    return (
        re.sub("`(agent-watchdog )?why AGENT`", lambda _: f"`agent-watchdog why {one.name}`", todo)
        if one.name
        else todo
    )


class Troubles:
    """Receives every event of the log, in any thread, and never waits or logs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, ...], _Trouble] = {}
        self._entries: dict[str, frozenset[tuple[str, ...]]] = {}  # what the configuration has, by section; all: {}

    def configure(self, section: str, entries: Iterable[tuple[str, ...]]) -> None:
        """From now on that section has these entries: what it no longer has needs no attention, and will need none."""
        with self._lock:
            self._entries[section] = frozenset(entries)
            for key, one in list(self._kept.items()):
                if not self._is_configured(KEPT[one.event], one.named):
                    del self._kept[key]

    def _is_configured(self, kind: TroubleKind, named: tuple[str, ...]) -> bool:
        return not kind.named or kind.section not in self._entries or named in self._entries[kind.section]

    def hear(self, event: str, fields: Mapping[str, object]) -> None:
        """An event was logged."""
        if event == "config.reloaded":
            self._reloaded(fields.get("changed"))
        for begun in _ENDED_BY.get(event, ()):
            with self._lock:
                self._kept.pop(_key(begun, fields), None)
        kind = KEPT.get(event)
        if kind is None or (kind.only is not None and str(fields.get(kind.only[0])) != kind.only[1]):
            return
        what, now, mono = _words(kind.says, fields), self._clock.now().wall, self._clock.mono()
        named = tuple(str(fields.get(field)) for field in kind.named)
        with self._lock:
            if not self._is_configured(kind, named):
                return  # a try that had begun before it was taken out
            key = _key(event, fields)
            former = self._kept.pop(key, None)
            since, count = (former.since, former.count + 1) if former else (now, 1)
            self._kept[key] = _Trouble(event, what, since, now, mono, str(fields.get("name") or ""), named, count)
            while len(self._kept) > MOST:
                del self._kept[next(iter(self._kept))]

    def facts(self) -> list[dict[str, object]]:
        """The facts for `status`, errors and the latest first."""
        now = self._clock.mono()
        with self._lock:
            for key, one in list(self._kept.items()):
                fades = KEPT[one.event].fades
                if fades is not None and now - one.mono > fades:
                    del self._kept[key]
            latest = [*reversed(self._kept.values())]
        kept = sorted(latest, key=lambda one: -CATALOGUE[one.event].level)
        return [
            {
                "event": one.event,
                "level": "error" if CATALOGUE[one.event].level == ERROR else "warning",
                "what": one.what,
                "meaning": CATALOGUE[one.event].text,
                "todo": _remedy(one),
                "since": one.since.isoformat(timespec="seconds"),
                "last": one.last.isoformat(timespec="seconds"),
                "count": one.count,
            }
            for one in kept
        ]

    def _reloaded(self, changed: object) -> None:
        sections = {str(key).split(".")[0] for key in changed} if isinstance(changed, list | tuple) else set()
        with self._lock:
            for key, one in list(self._kept.items()):
                if KEPT[one.event].section in sections and not KEPT[one.event].named:
                    del self._kept[key]


def _key(event: str, fields: Mapping[str, object]) -> tuple[str, ...]:
    return event, *(str(fields.get(key)) for key in KEPT[event].keys)


class _TroubleText(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


def _words(text: str, fields: Mapping[str, object]) -> str:
    """Fields are foreign text: remove secrets, and cut."""
    error = fields.get("exc_info")
    said = {key: hide_secrets(str(value))[:LONGEST] for key, value in fields.items()}
    if isinstance(error, BaseException):
        said.setdefault("error", hide_secrets(f"{type(error).__name__}: {error}")[:LONGEST])
    return text.format_map(_TroubleText(said))
