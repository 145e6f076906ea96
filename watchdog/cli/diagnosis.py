"""Turns what `doctor` saw into findings: one function per finding. Nothing is inspected here.

Each says what is wrong, what it means, and what to do. `warn` is a matter of taste or a missing feature; `fault` means
that something that the daemon promises does not work: anything for which `status` exits with 1 is a fault of `doctor`
too.

Tests: tests/cli/test_doctor.py.
"""

import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from watchdog.cli.output import ago, clock, entries, entry, size
from watchdog.cli.seen import Seen
from watchdog.core.services import CODEX

NOTIFY_FAILED = "notify.failed"
SHOWN = 5  # faults of a file that one finding lists at most
GIBIBYTE = 1 << 30
WAL_LARGE = 32 << 20  # bytes: beyond its normal 8 MiB plus one long transaction of ours


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    severity: str  # "fault" or "warn"
    what: str
    meaning: str
    todo: str


def diagnose(seen: Seen) -> list[Finding]:
    """All findings, faults first."""
    found = [finding for check in CHECKS for finding in check(seen)]
    return sorted(found, key=lambda finding: finding.severity != "fault")


def attention(seen: Seen) -> list[Finding]:
    """Problems that the daemon's own answer shows, faults first: the verdict of `status`."""
    found = [finding for check in ATTENTION for finding in check(seen)]
    return sorted(found, key=lambda finding: finding.severity != "fault")


def standstill(seen: Seen) -> list[Finding]:
    """Why the daemon currently judges or kills no agent at all, for the head of a list of agents."""
    return [finding for check in (_sweeps, _registry, _held, _mode) for finding in check(seen)]


def _name_clash(seen: Seen) -> Iterator[Finding]:
    if others := [name for name in seen.distributions if name.lower() != "agent-watchdogd"]:
        yield Finding(
            "fault",
            f"this environment also holds {', '.join(others)}, which owns the package `watchdog` too",
            "one overwrote files of the other; the daemon refuses to start",
            "an environment for agent-watchdogd alone: make install, or uv tool install agent-watchdogd",
        )


def _socket(seen: Seen) -> Iterator[Finding]:
    if seen.socket_problem is not None:
        yield Finding(
            "fault",
            f"{seen.socket}: {seen.socket_problem}",
            "no client uses a socket there, since another program could answer",
            "stop the daemon, find out who made that directory, remove it, start the daemon",
        )
    elif seen.status is None and seen.halted:
        yield Finding(
            "fault",
            f"the daemon (process {seen.living}) is stopped: by SIGSTOP, or by a debugger",
            "no agent is watched as long as it is; that time counts against no agent afterwards",
            f"kill -CONT {seen.living}",
        )
    elif seen.status is None and seen.living is not None:
        shut = _first_shut(seen)
        yield Finding(
            "fault",
            f"the daemon (process {seen.living}) lives, but cannot be asked: {seen.silence}",
            "it goes on watching, but heartbeats may not reach it; it does not hold such a silence against an agent",
            f"{shut}; the daemon is then reached again by itself, there is nothing to start"
            if shut
            else f"try again; if that lasts, read its log, then {_restart(seen)}",
        )
    elif seen.status is None and "not permitted to connect" in str(seen.silence):
        shut = _first_shut(seen)
        yield Finding(
            "fault",
            f"whether a daemon runs is not known: {seen.silence}",
            "no client and no heartbeat of yours reaches it",
            f"{shut}; then agent-watchdog status"
            if shut
            else "ask whoever runs the daemon to open the way to its socket, or name your own by --socket PATH",
        )
    elif seen.status is None:
        ended = f"; the last one ended with: {seen.last_words}" if seen.last_words else ""
        shut = _first_shut(seen)
        first = f"{shut}, then " if shut else ""
        if not first and seen.config:
            ours = all(_in_the_way(problem) for problem in seen.config)
            first = "remove what is in the way (below), then " if ours else "correct the configuration (below), then "
        elif not first and seen.last_words:
            first = "correct that, then "
        yield Finding(
            "fault",
            f"no daemon: {seen.silence}{ended}",
            "nothing is watched, and no stalled agent is killed",
            f"{first}{_start(seen)}",
        )
    if seen.status is not None and seen.others:
        yield Finding(
            "warn",
            f"another daemon answers at {', '.join(seen.others)}",
            "an agent belongs to the daemon where it was registered; `list` shows those of one only",
            "one daemon a host, or --socket PATH to ask the other",
        )


def _first_shut(seen: Seen) -> str:
    """The command that opens the first place that the daemon's own uid may not use; "": there is none."""
    shut = (path for path in _by_its_mode(seen) if _closed(seen.places[path]))
    return next((_right_mode(seen, path, seen.places[path]) for path in shut), "")


def _systemctl(seen: Seen, verb: str) -> str:
    """The systemctl command for the unit of the answering daemon, or of ours."""
    return f"systemctl{' --user' if _owner(seen) else ''} {verb} agent-watchdog"


def _start(seen: Seen) -> str:
    if not seen.systemd:
        return f"agent-watchdogd --daemonize{_with_config(seen)}"
    return f"{_systemctl(seen, 'start')} (where it is not installed as a service: agent-watchdogd)"


def _restart(seen: Seen) -> str:
    """The same for one that runs, and what becomes of the agents.

    Without systemd its successor would find its lock held, so its end is waited for: until it is gone, or a zombie,
    which it stays in a container whose first process reaps nothing. If it is that first process itself, its end is the
    end of all others there.
    """
    if seen.systemd:
        return f"{_systemctl(seen, 'restart')} (agents keep running)"
    pid = (seen.status or {}).get("pid", seen.living)
    if pid == 1:
        return "restart its container, whose first process it is (what runs in there ends with it: let agents finish)"
    wait = f"while grep -qs '^State:.[^Z]' /proc/{pid}/status; do sleep 1; done"
    return f"kill {pid}; {wait}; agent-watchdogd --daemonize{_with_config(seen)} (agents keep running)"


def _with_config(seen: Seen) -> str:
    """The option by which a daemon is started as the one that answers was, or by the file that `doctor` was given."""
    file = (seen.status or {}).get("config") or seen.config_file
    return f" --config {shlex.quote(file)}" if isinstance(file, str) and file.startswith("/") else ""


def _elsewhere(seen: Seen) -> Iterator[Finding]:
    """Agents that two daemons of this host know, from either daemon's answer."""
    for one in entries((seen.status or {}).get("elsewhere")):
        there = f"agent-watchdog --socket {shlex.quote(str(one.get('socket')))}"
        name = shlex.quote(str(one.get("name_there")))
        yield Finding(
            "warn",
            f"{one.get('name')} is watched by {one.get('holder')}, not by this daemon",
            "two daemons know it: here it is neither judged nor killed for silence nor cleaned up, and what it says is"
            " passed on; when that daemon is gone, this one watches it",
            f"{there} why {name} (or kill {name}); is the second daemon wanted? else stop it",
        )
    for path, names in seen.left_to_us.items():
        yield Finding(
            "warn",
            f"the daemon at {path} knows {', '.join(names[:8])}{' and more' if len(names) > 8 else ''}, too",
            "this daemon watches what both know; that one does nothing about it",
            "is the second daemon wanted? else stop it",
        )
    for uid, path, count in seen.user_daemons:
        agents = f"{count} agent{'' if count == 1 else 's'}"
        yield Finding(
            "warn",
            f"uid {uid} has a daemon of its own ({path}) beside {agents} of that user here",
            "an agent that both know is watched by this daemon, root's; that one calls it `elsewhere` in its `list` and"
            " does nothing about it",
            f"is the second daemon wanted? as that user: agent-watchdog --socket {shlex.quote(path)} list",
        )


def _sweeps(seen: Seen) -> Iterator[Finding]:
    if seen.status is None:
        return
    interval = seen.status.get("interval_seconds")
    if isinstance(interval, int | float) and seen.sweep_age is not None and seen.sweep_age > 3 * interval + 1:
        yield Finding(
            "fault",
            f"the last sweep was {seen.sweep_age:.0f} s ago; one is due every {interval:g} s",
            "no agent is judged meanwhile",
            f"look for sweep.failed, sweep.overrun and registry.unavailable in the log; then {_restart(seen)}",
        )


def _mode(seen: Seen) -> Iterator[Finding]:
    if seen.status is not None and seen.status.get("mode") == "observe":
        yield Finding(
            "warn",
            "the daemon only observes",
            "it kills and cleans up nothing",
            '[daemon] mode = "enforce", then agent-watchdog reload; if it was started with --observe, start it without',
        )


def _reloaded(seen: Seen) -> Iterator[Finding]:
    """The result of the daemon's last reload; `_config` checks the file as it is now."""
    said = seen.status.get("config_problems") if seen.status else None
    if isinstance(said, list) and said:
        file = f"{(seen.status or {}).get('config')}: "
        more = f"; and {len(said) - SHOWN} more" if len(said) > SHOWN else ""
        first, *rest = [str(problem) for problem in said[:SHOWN]]
        faults = "; ".join([first, *(problem.removeprefix(file) for problem in rest)])
        yield Finding(
            "fault",
            f"the last reload was refused: {faults}{more}",
            f"the former settings are in force; {_restarted(' '.join(map(str, said)))}",
            "correct the file, check it with agent-watchdogd --check, then agent-watchdog reload",
        )


def _restarted(problems: str) -> str:
    """What a restart would do with a file that a reload refused, according to `--check`."""
    if "or restart for all defaults" in problems:  # it may be half-written, which a start cannot detect
        return "a restart would take all defaults"
    if any(words in problems for words in ("not applied: ", "no answer within", "has not returned yet")):
        return "agent-watchdogd --check reports whether a restart takes the file"
    return "a restart would fail"


def _waiting(seen: Seen) -> Iterator[Finding]:
    waiting = seen.status.get("config_waiting") if seen.status else None
    if isinstance(waiting, list) and waiting:
        yield Finding(
            "fault",
            f"changed, but not in force: {', '.join(map(str, waiting))}",
            "these keys take effect at the next start",
            _restart(seen),
        )


def _troubles(seen: Seen) -> Iterator[Finding]:
    """The daemon's own recent errors."""
    for one in entries((seen.status or {}).get("troubles")):
        at = _clock(one.get("last"))
        often = f"at {at}" if one.get("count") == 1 else f"{one.get('count')} times, the last at {at}"
        yield Finding(
            "fault",
            f"{one.get('what')} ({often})",
            str(one.get("meaning")),
            str(one.get("todo") or "see the log") + _trial(seen, one),
        )


def _trial(seen: Seen, trouble: dict[str, object]) -> str:
    """The line that runs a failing command of [notify] as the daemon does: event on stdin, its environment alone."""
    if trouble.get("event") != NOTIFY_FAILED or not seen.pager:
        return ""
    found = re.search(r" failed for ([\w.]+):", str(trouble.get("what")))
    event = found[1] if found else "agent.needs_human"
    env, option, *rest = seen.pager
    words = [env, option, f"AGENT_WATCHDOG_EVENT={event}", *rest]
    uid = _owner(seen)
    whose = "" if uid == seen.uid else f" as uid {uid}"
    from watchdog.core.redaction import hide_secrets  # lazily: its patterns are compiled at import

    line = shlex.join(words)
    shown = hide_secrets(line)  # `doctor` is pasted into reports
    hidden = "" if shown == line else f" (with the secret that {(seen.status or {}).get('config')} has)"
    return f'; to try it{whose}{hidden}: echo \'{{"event": "{event}"}}\' | {shown}'


def _clock(stamp: object) -> str:
    """A UTC stamp as local time."""
    try:
        return datetime.fromisoformat(str(stamp)).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return str(stamp)


def _unkillable(seen: Seen) -> Iterator[Finding]:
    alive = entries((seen.status or {}).get("unkillable"))
    for one in alive:
        twice = sum(other.get("name") == one.get("name") for other in alive) > 1
        target = shlex.quote(str(one.get("agent_id" if twice or not one.get("name") else "name")))
        yield Finding(
            "fault",
            f"{one.get('name')} cannot be killed: {one.get('why') or 'its owner may see why'}",
            "it is tried again with growing pauses; nothing of it is cleaned up before",
            str(
                one.get("todo") or f"free what holds it (above), then agent-watchdog kill {target} tries again at once"
            ),
        )


def _held(seen: Seen) -> Iterator[Finding]:
    """Holds on everything; a hold on one agent is shown by `list` and `why`."""
    status = seen.status or {}
    doubts, limit = status.get("lasting_doubts"), status.get("hold_max_seconds")
    most = f"each agent's for {ago(limit)} at most ([hold] max_seconds)" if limit else "each agent's for a limited time"
    for why in doubts if isinstance(doubts, list) else []:
        yield Finding(
            "fault",
            f"the daemon holds back kills for silence: {why}",
            f"it suspects itself or this host rather than the agents, and holds back {most}",
            "look at network, provider and load; agent-watchdog unhold ends it at once",
        )
    for one in entries(status.get("holds")):
        if not one.get("agent_id"):
            until = f", until {clock(one['until'])}" if one.get("until") else ""
            yield Finding(
                "fault",
                f"all agents are held: {one.get('reason') or 'no reason given'} (by uid {one.get('by_uid')}{until})",
                "the daemon kills no agent meanwhile",
                "agent-watchdog unhold",
            )


def _in_the_way(problem: str) -> tuple[str, str] | None:
    """A problem of `--check` about a place rather than the file: what is there, and the command that removes it."""
    what, mark, command = problem.partition("; do: ")
    return (what, command) if mark else None


def _is_right_kind(seen: Seen, path: str, found: os.stat_result) -> bool:
    """Whether the place is a file or directory as it should be; for anything else `--check` has the remedy."""
    return stat.S_ISREG(found.st_mode) or (stat.S_ISDIR(found.st_mode) and path not in seen.private[1:])


def _by_its_mode(seen: Seen) -> list[str]:
    """The places that `_shut` or `_places` reports: only their mode or owner is wrong."""
    return [
        path
        for path, found in seen.places.items()
        if _is_right_kind(seen, path, found) and (_closed(found) or _changeable(seen, found))
    ]


def _config(seen: Seen) -> Iterator[Finding]:
    told = (seen.status or {}).get("config_problems")
    if seen.config_unknown is not None:
        yield Finding(
            "fault",
            f"the configuration could not be checked: {seen.config_unknown}",
            "whether the daemon starts with it is not known; a file, a mount, a disk or a directory service may hang",
            "run agent-watchdogd --check by hand: it names what it waits for",
        )
    for problem in seen.config:
        if isinstance(told, list) and problem in told:
            continue
        alone = seen.status is None and seen.living is None
        if (found := _in_the_way(problem)) is not None:
            if any(problem.startswith(f"{path}: ") for path in _by_its_mode(seen)):
                continue
            meaning = "the daemon does not start with it" if alone else "the next start of the daemon fails by it"
            yield Finding("fault", found[0], meaning, f"{found[1]}, then {_start(seen)}" if alone else found[1])
            continue
        meaning = (
            "every user who can write there decides what the daemon runs, with its rights; it starts all the same"
            if "others could change what runs" in problem
            else "the daemon does not start with this file"
            if seen.status is None and seen.living is None
            else "the daemon that runs keeps its former settings; it would not start with this file"
        )
        then = _start(seen) if seen.status is None and seen.living is None else "agent-watchdog reload"
        yield Finding("fault", problem, meaning, f"correct it, check it with agent-watchdogd --check, then {then}")
    for problem in seen.config_warnings:
        secret = "secret stands" in problem or "password or token" in problem
        meaning, todo = (
            ("users other than its owner can read it", "replace it, and put it where its owner alone can read it")
            if secret
            else (
                "perhaps a mistake; the daemon starts all the same, without what it names",
                "correct it, or create what is missing",
            )
        )
        yield Finding("warn", problem, meaning, todo)


def _registry(seen: Seen) -> Iterator[Finding]:
    problem = seen.status.get("registry_problem") if seen.status else None
    if problem:
        yield Finding(
            "fault",
            f"the registry cannot be used: {problem}",
            "the daemon kills no agent and accepts no new one until it is back; `run` tries again until then",
            _registry_remedy(seen, str(problem)),
        )


def _registry_remedy(seen: Seen, problem: str) -> str:
    if "the file is damaged" in problem:
        return (
            f"{_restart(seen)}: the damaged file is put aside, and registered"
            " agents are watched again; then hold again what was held, and agent-watchdog unhold"
        )
    itself = "; the daemon goes on by itself"
    if found := re.search(r"registry PostgreSQL (.+?)(?::(\d+))?, ", problem):
        return _server_remedy(problem, *found.groups()) + itself
    file = found[1] if (found := re.search(r"registry (?:sqlite:///)?(/.+?): ", problem)) else "the file"
    if "SQLITE_BUSY" in problem:
        return f"end the transaction that has {file} locked (lsof {file} names all that have it open){itself}"
    if "READONLY" in problem:
        return f"make {file} writable (chmod 600, or remount what it lies on){itself}"
    if "Permission denied" in problem or "CANTOPEN" in problem:
        return f"let the daemon's uid open {file} (chmod 600; 700 for its directory){itself}"
    if "full" in problem.lower() or "No space" in problem:
        return f"make room on its disk (df -h {os.path.dirname(file) or '.'}){itself}"
    if "the file was removed or replaced" in problem:
        return f"put {file} back{itself}; or {_restart(seen)}, which begins with what lies there"
    return f"look at the disk of {file} (room, errors in dmesg, a mount that is gone), or put it back{itself}"


def _server_remedy(problem: str, host: str, port: str | None) -> str:
    """The remedy for the server's administrator, by the message of libpq or the server."""
    if found := re.search(r'on socket "(/.*)/\.s\.PGSQL\.(\d+)"', problem):
        host, port = found.groups()
    options = f"{'' if host == 'on this host' else f' -h {shlex.quote(host)}'}{f' -p {port}' if port else ''}"
    if any(words in problem for words in ("authentication failed", "pg_hba.conf", " does not exist", "permission den")):
        return "correct user, password and database of registry.url, or pg_hba.conf and the rights on the server"
    if "too many clients" in problem or "connection slots" in problem:
        return "end connections on the server (SELECT * FROM pg_stat_activity), or raise its max_connections"
    if "No space" in problem or "disk full" in problem:
        return "make room on the server's disk"
    if "read-only transaction" in problem:
        return "the server only reads (a standby?): name the one that writes in registry.url, or promote this one"
    return (
        f"is the server running? pg_isready{options} shows; start it on its host,"
        " or correct host and port of registry.url"
    )


def _disk(seen: Seen) -> Iterator[Finding]:
    status = seen.status or {}
    files = status.get("disk_reserve")
    for path, one in files.items() if isinstance(files, dict) else ():
        if isinstance(one, dict) and one.get("disk_full"):
            directory, name = os.path.split(path)
            registry = name == "reserve"  # the other one is next to a log file
            yield Finding(
                "fault",
                f"the disk of {directory} is full; {size(one.get('bytes'))} of the daemon's reserve there are left",
                "the log lives on the reserve; the registry is elsewhere, and all else goes on"
                if not registry
                else "kills and the log live on the reserve; new registrations and holds of users who are not admins"
                " are refused"
                if _owner(seen) == 0
                else "kills, registrations, holds and the log live on the reserve; when it is used up, they fail",
                f"make room (df -h {shlex.quote(directory)}); the reserve is made again by itself",
            )


def _log(seen: Seen) -> Iterator[Finding]:
    log = seen.status.get("log") if seen.status else None
    if not isinstance(log, dict):
        return
    if log.get("error"):
        yield Finding(
            "fault",
            f"the log {log.get('target')} cannot be written: {log['error']}",
            "what happens is recorded in `events` and `why` alone",
            "make room, or repair the target; the daemon then writes on by itself",
        )


def _lines_lost(seen: Seen) -> Iterator[Finding]:
    log = seen.status.get("log") if seen.status else None
    if isinstance(log, dict) and log.get("lost") and not log.get("error"):
        yield Finding(
            "warn",
            f"{log['lost']} lines of the log were lost since the start",
            "its target took them too slowly, or was away",
            "`events` has the history of agents all the same",
        )


def _limited(seen: Seen) -> Iterator[Finding]:
    for one in entries((seen.status or {}).get("limited")):
        times = f"{one.get('refused')} times since {clock(one.get('since'))}"
        yield Finding(
            "fault",
            f"uid {one.get('uid')} is limited: {one.get('why')}; {times}",
            "its requests are refused, or wait; other users are served as usual",
            "see what that user runs; its subordinate uids (/etc/subuid) count as that user",
        )
    problems = seen.status.get("subuid_problems") if seen.status else None
    for problem in problems if isinstance(problems, list) else []:
        yield Finding(
            "fault",
            str(problem),
            "subordinate uids that are not read there count for themselves: each has a whole user's share",
            "correct the file; the daemon reads it again within half a minute",
        )


def _hangs(seen: Seen) -> Iterator[Finding]:
    waits = seen.status.get("waits_for") if seen.status else None
    for what, seconds in waits.items() if isinstance(waits, dict) else ():
        yield Finding(
            "fault",
            f"the daemon has had no answer from {what} for {seconds} s",
            "it goes on without it: what only that could say is missing",
            "look at the disk, mount or server that it names; the daemon goes on by itself when it answers",
        )
    for what in seen.unanswered:
        yield Finding(
            "fault",
            f"{what} does not answer",
            "a disk, a mount or a server hangs; the daemon does not wait for it, but cannot use it either",
            "look at it by hand (`timeout 5 ls PATH`, `mount`), and repair or unmount what hangs",
        )


def _unit(seen: Seen) -> Iterator[Finding]:
    if seen.unit is None:
        return
    enabled, active = seen.unit
    option = " --user" if seen.uid else ""
    if active == "failed":
        yield Finding(
            "fault",
            "agent-watchdog.service has failed",
            "systemd does not start it again by itself (exit status 64 or 78)",
            f"journalctl{option} -u agent-watchdog -n 30; systemctl{option} restart agent-watchdog",
        )
    elif enabled not in ("enabled", "enabled-runtime", "static", "linked") and seen.status is None:
        yield Finding(
            "warn",
            f"agent-watchdog.service is {enabled or 'not installed'}",
            "nothing starts the daemon after a reboot",
            f"make install, then systemctl{option} enable --now agent-watchdog",
        )


def _bus(seen: Seen) -> Iterator[Finding]:
    if seen.bus is False and seen.uid == 0:
        yield Finding(
            "fault",
            "systemd runs, but no system bus does",
            "the host's service cannot start helpers as agents' owners: no hook, no heartbeat file",
            "apt install dbus; systemctl start dbus",
        )


def _owner(seen: Seen) -> object:
    """The uid of the answering daemon; ours if none answers."""
    return (seen.status or {}).get("uid", seen.uid)


def _linger(seen: Seen) -> Iterator[Finding]:
    if seen.linger is False and _owner(seen) != 0:
        yield Finding(
            "warn",
            "lingering is off for you",
            "your daemon ends with your last session, and so do agents in it",
            "loginctl enable-linger",
        )


def _interpreter(seen: Seen) -> Iterator[Finding]:
    if seen.uid == 0 and seen.interpreter_closed is not None:
        yield Finding(
            "fault",
            f"other users cannot execute {seen.interpreter} ({seen.interpreter_closed} is closed to them)",
            "helpers of agents' owners cannot start: no hook, no heartbeat file for any user but root",
            "install where every user may read: make install builds on /usr/bin/python3 in /opt",
        )


def _proc(seen: Seen) -> Iterator[Finding]:
    if seen.hidepid is not None and seen.hidepid not in ("0", "off") and seen.uid != 0:
        yield Finding(
            "warn",
            f"/proc is mounted with hidepid={seen.hidepid}",
            "processes of other uids are hidden: an agent that changes its uid cannot be followed",
            "nothing, if your agents stay yours; else the host's daemon (root)",
        )
    if not seen.pressure:
        yield Finding(
            "warn",
            "/proc/pressure is not there",
            "pressure cannot distinguish a busy host from a stalled agent; load is used",
            "boot with psi=1 (CONFIG_PSI)",
        )


def _unreadable(seen: Seen) -> Iterator[Finding]:
    hung = entries((seen.status or {}).get("unreadable"))
    for uid in dict.fromkeys(one.get("uid") for one in hung):
        of = [one for one in hung if one.get("uid") == uid]
        pids = ", ".join(map(_whose, of[:8])) + (f" and {len(of) - 8} more" if len(of) > 8 else "")
        names = dict.fromkeys(shlex.quote(str(one["agent"])) for one in of if one.get("agent"))
        killed = f"agent-watchdog kill {' '.join(names)}" if names else "kill these processes"
        yield Finding(
            "fault",
            f"reads of files of uid {uid} hang ({of[0].get('file')}): process {pids}",
            "what they do is unknown; an agent whose main process is among them counts neither as ended nor as silent,"
            " and is not killed for silence",
            f"repair the file system (FUSE, NFS) that they wait for, or {killed}",
        )


def _unjudged(seen: Seen) -> Iterator[Finding]:
    verdicts = entry((seen.status or {}).get("verdicts"))
    count = verdicts.get("unknown")
    if isinstance(count, int) and count and not entries((seen.status or {}).get("unreadable")):
        yield Finding(
            "fault",
            f"{count} agent{'' if count == 1 else 's'} cannot be judged",
            "as long as it is unknown how one is, it counts neither as ended nor as silent, and a stall is found late",
            "agent-watchdog list names it, and in the last column the cause",
        )


def _whose(one: dict[str, object]) -> str:
    return f"{one.get('pid')} (agent {one['agent']})" if one.get("agent") else str(one.get("pid"))


def _containers(seen: Seen) -> Iterator[Finding]:
    if seen.containers:
        yield Finding(
            "warn",
            f"{', '.join(seen.containers)} is here: what agents run in containers is not watched",
            "work there is no activity of the agent, and what runs there is neither killed nor cleaned up with it",
            "have the agent beat while it waits for a container, and remove containers with a [[hook]] of your own",
        )


def _shared(seen: Seen) -> Iterator[Finding]:
    found = (seen.status or {}).get("shared_services")
    for one in found if isinstance(found, list) else []:
        if not isinstance(one, dict) or (seen.uid and one.get("uid") != seen.uid):
            continue
        agents, silent, name = one.get("agents"), one.get("silent"), one.get("name")
        works = f"works for the sessions of {agents} agents" if agents else "works for no session that is known"
        works = "hangs, perhaps: each agent that it works for is silent" if agents and agents == silent else works
        own = name == CODEX
        yield Finding(
            "warn",
            f"{name} of uid {one.get('uid')} (process {one.get('pid')}) {works}",
            "all sessions of that user share it, so it is not killed with an agent, whatever becomes of it; "
            + (
                "with several clients in one directory, the owner of a session is not always known"
                if own
                else "each is an agent"
            ),
            "codex --no-daemon gives an agent a process of its own; where it hangs: codex app-server daemon restart"
            if own
            else "where it hangs: claude stop ID for its sessions (claude agents), then kill it",
        )


def _kernel(seen: Seen) -> Iterator[Finding]:
    missing = [name for name in ("pidfd_open", "pidfd_send_signal") if not seen.features.get(name, True)]
    if missing:
        yield Finding(
            "fault",
            f"this kernel gives no pidfd ({', '.join(missing)})",
            "processes cannot be signalled without the risk of a reused pid; no agent is killed",
            "Linux 5.4 or newer; in a container, a seccomp profile that allows both calls",
        )
    elif seen.kernel < (6, 9):
        yield Finding(
            "warn",
            f"Linux {seen.kernel[0]}.{seen.kernel[1]} has no inode for a pidfd (6.9)",
            "a process is known by pid and start time alone; one of the same tick is refused, never signalled",
            "nothing",
        )
    if not seen.features.get("mount_id", True):
        yield Finding(
            "fault",
            "/proc does not say on which mount a directory lies",
            "the hooks cannot tell what is mounted in a directory, and keep everything",
            "mount /proc; Linux 3.15 or newer",
        )
    if not missing and seen.kernel < (6, 15):
        yield Finding(
            "warn",
            f"Linux {seen.kernel[0]}.{seen.kernel[1]} does not report the exit status of other processes (6.15)",
            "an agent that was only registered ends as `completed` without a status",
            "start agents by `agent-watchdog run`, which knows it",
        )
    if seen.own_cgroup is not None and seen.own_cgroup.startswith("none"):
        yield Finding(
            "warn",
            f"agents get no cgroup of their own ({seen.own_cgroup.removeprefix('none: ')})",
            "a process that drops marker, session and parent is lost when its agent's `run` has ended",
            _cgroup_remedy(seen),
        )


def _cgroup_remedy(seen: Seen) -> str:
    yours = _owner(seen) != 0
    if seen.systemd or seen.linger is not None:
        return f"a systemd with cgroup v2{', and your user manager (loginctl enable-linger)' if yours else ''}"
    if yours:
        return "without systemd: root's daemon instead of your own, or a cgroup v2 directory that root gives to you"
    return "without systemd: a cgroup v2 that root may write at /sys/fs/cgroup (in a container: mounted writable)"


def _confinement(seen: Seen) -> Iterator[Finding]:
    if not seen.features.get("landlock", True):
        yield Finding(
            "warn",
            "this kernel has no Landlock (ABI 2 or newer)",
            "parsers of other programs' registries, once taken over, could use every file of their owner",
            "Linux 5.19 or newer with landlock in lsm= (CONFIG_LSM); in a container, a seccomp profile with it",
        )
    if not seen.features.get("seccomp", True):
        yield Finding(
            "warn",
            "this machine has no filter of system calls for the owners' helpers",
            "a helper that was taken over could use the network and trace other processes of its owner",
            "a kernel with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64",
        )


def _closed(found: os.stat_result) -> bool:
    """Whether even its owner may not use it: root's service lacks the capability to override the mode."""
    wanted = 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
    return not stat.S_ISLNK(found.st_mode) and found.st_mode & wanted != wanted


def _right_mode(seen: Seen, path: str, found: os.stat_result) -> str:
    """`chmod` with the mode that the daemon gives this place, which opens it to no other user."""
    roots = found.st_uid == 0 and path not in seen.private
    mode = "600" if stat.S_ISREG(found.st_mode) else "700" if not roots else "755"
    if roots and os.path.basename(path) == "notify":
        mode = "711"
    return f"chmod {mode} {shlex.quote(path)}"


def _changeable(seen: Seen, found: os.stat_result) -> bool:
    """Whether other users could change it: it is not the daemon's, is writable for others, or is a link."""
    uid = seen.status.get("uid") if seen.status else None
    owners = (uid,) if isinstance(uid, int) else (0, seen.uid)
    return found.st_uid not in owners or bool(found.st_mode & 0o022) or stat.S_ISLNK(found.st_mode)


def _shut(seen: Seen) -> Iterator[Finding]:
    for path, found in seen.places.items():
        if not _is_right_kind(seen, path, found):
            continue
        if _closed(found) and not _changeable(seen, found):  # otherwise `_places` has the same remedy
            yield Finding(
                "fault",
                f"{path} has mode {stat.S_IMODE(found.st_mode):04o}: the daemon's own uid may not use it",
                "the daemon cannot start with it, or its clients and agents do not reach it",
                _right_mode(seen, path, found),
            )


def _places(seen: Seen) -> Iterator[Finding]:
    for path, found in seen.places.items():
        if path == os.path.dirname(seen.socket) and seen.socket_problem is not None:
            continue  # already reported
        if not _is_right_kind(seen, path, found) and any(one.startswith(f"{path}: ") for one in seen.config):
            continue  # the same
        mode = stat.S_IMODE(found.st_mode)
        if _changeable(seen, found):
            severity, meaning = (
                "fault",
                "other users could change what the daemon relies on; it refuses such a place when it starts",
            )
        elif path in seen.private and mode & 0o077 and not _closed(found):
            severity, meaning = "warn", "other users may read names of agents, their tasks and paths there"
        else:
            continue
        uid = _owner(seen)
        right = _right_mode(seen, path, found)
        if stat.S_ISLNK(found.st_mode):
            right = f"put what it leads to in its place, as uid {uid}'s own"
        elif found.st_uid != uid:
            right = f"as root: chown {uid} {shlex.quote(path)}, then {right}"
        yield Finding(
            severity,
            f"{path} has mode {mode:04o} and owner uid {found.st_uid}",
            meaning,
            f"find out who changed it; then {right}",
        )


def _limits(seen: Seen) -> Iterator[Finding]:
    if seen.open_files is not None and seen.open_files < 4096:
        yield Finding(
            "warn",
            f"only {seen.open_files} descriptors are allowed",
            "each agent takes two or three; beyond that ends are found by sweeps, and registrations refused",
            "LimitNOFILE=65536 in the unit" if seen.systemd else "ulimit -n 65536 in the shell that starts the daemon",
        )
    if seen.git is None:
        yield Finding(
            "fault", "git is not on PATH", "the hook `worktree` fails and keeps everything", "apt install git"
        )


def _sizes(seen: Seen) -> Iterator[Finding]:
    if seen.registry_bytes is not None and seen.registry_bytes > GIBIBYTE:
        yield Finding(
            "warn",
            f"the registry has {seen.registry_bytes / GIBIBYTE:.1f} GiB",
            "its history is long; that does not slow sweeps down",
            "a smaller [registry] retention_days",
        )
    if seen.wal_bytes is not None and seen.wal_bytes > WAL_LARGE:
        by = f"process {', '.join(map(str, seen.wal_readers))}" if seen.wal_readers else "a process"
        yield Finding(
            "warn",
            f"the registry's write-ahead log has {seen.wal_bytes >> 20} MiB",
            f"{by} has been reading the registry for a long time: meanwhile the log cannot be written back"
            " into the database and grows until the disk is full; it is cut to 8 MiB when the read has finished",
            "end that process, or its transaction (lsof registry.db names all that have it open)",
        )
    if seen.trash_bytes is not None and seen.trash_bytes > 10 * GIBIBYTE:
        yield Finding(
            "warn",
            f"trash holds {seen.trash_bytes / GIBIBYTE:.1f} GiB in {', '.join(seen.trash)}",
            "it holds what hooks removed, which can be restored",
            "look through it, and remove what is not needed",
        )


# Findings that need only the daemon's answer.
ATTENTION: tuple[Callable[[Seen], Iterator[Finding]], ...] = (
    _sweeps,
    _reloaded,
    _registry,
    _disk,
    _log,
    _troubles,
    _unkillable,
    _hangs,
    _held,
    _unreadable,
    _unjudged,
    _limited,
    _waiting,
)
CHECKS: tuple[Callable[[Seen], Iterator[Finding]], ...] = (
    *ATTENTION,
    _name_clash,
    _socket,
    _elsewhere,
    _mode,
    _config,
    _lines_lost,
    _unit,
    _bus,
    _linger,
    _interpreter,
    _proc,
    _shared,
    _containers,
    _kernel,
    _confinement,
    _places,
    _shut,
    _limits,
    _sizes,
)
