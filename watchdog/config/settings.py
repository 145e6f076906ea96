"""The configuration: one strict TOML file -> frozen `Settings`. No other module reads configuration.

All problems are reported at once, each with file, key and remedy; the daemon then exits with 78. An empty string means
the default: by uid for paths, machine-id for the host, off for the rest.
"""

import dataclasses
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal

from pydantic import ValidationError

from watchdog.concurrency import threads
from watchdog.config.fields import plain_in_url, suggest
from watchdog.config.messages import explain
from watchdog.config.paths import Paths, places_for
from watchdog.config.salvage import line_of, salvage
from watchdog.config.schema import (
    DEFAULT_HOOKS,
    SHIPPED_POLICIES,
    USERS_SOURCES,
    CleanupSection,
    Config,
    ControlSection,
    HoldSection,
    HookSection,
    KillSection,
    LogSection,
    MetricsSection,
    NotifySection,
    PolicyEntry,
    SourceSection,
    StallSection,
)
from watchdog.core.agent import TOLD_OF, Policy, Registration
from watchdog.core.hooks import HookSpec
from watchdog.core.kill import Step
from watchdog.errors import ConfigError

_LARGEST = 1 << 20  # bytes of a file; the shipped one has 8 KiB with all its comments
_ENDLESS_KEY = re.compile(
    rb"""(?:["'\w-]{1,40}[ \t]{0,9}\.[ \t]{0,9}){100}"""
)  # tomllib takes minutes for 20,000 parts
_SECTIONS = {name: "tuple" in str(field.annotation) for name, field in Config.model_fields.items()}  # [[list]] or not
_KEYED = re.compile(r"([a-z_][\w-]*(?:\[\d+\]|\.[\w-]+)*): ")  # the beginning of a problem with a key
_MARK = b"\xef\xbb\xbf"
_MOST = 50  # problems reported for one file; with more it is probably the wrong file
_SOCKET_ROOM = 63  # sun_path holds 107 bytes (unix(7)); "/notify/run-" and 32 hex digits need 44 of them


@dataclass(frozen=True)
class Settings:
    """The daemon's settings. `config` is the file; the rest is derived from it: `timedelta`s and resolved paths."""

    config: Config
    file: str | None  # its path; None: no file, all defaults
    mode: Literal["enforce", "observe"]
    host: str | None  # None: machine-id
    state_dir: str
    runtime_dir: str
    registry_url: str
    interval: timedelta
    retention: timedelta
    bytes_per_user: int  # in the registry
    hooks: tuple[HookSpec, ...]
    sources: tuple[SourceSection, ...]

    @property
    def observe(self) -> bool:
        """Whether to decide and log as usual, but send no signals and clean up nothing."""
        return self.mode == "observe"

    @property
    def kill(self) -> KillSection:
        """`[kill]`: `parallel` and `max_per_minute` apply to all agents together; the rest is in each agent's
        policy.
        """
        return self.config.kill

    @property
    def hold(self) -> HoldSection:
        """`[hold]`"""
        return self.config.hold

    @property
    def cleanup(self) -> CleanupSection:
        """`[cleanup]`"""
        return self.config.cleanup

    @property
    def control(self) -> ControlSection:
        """`[control]`"""
        return self.config.control

    @property
    def log(self) -> LogSection:
        """`[log]`"""
        return self.config.log

    @property
    def metrics(self) -> MetricsSection:
        """`[metrics]`"""
        return self.config.metrics

    @property
    def notify(self) -> NotifySection:
        """`[notify]`"""
        return self.config.notify

    def observing(self) -> "Settings":
        """A copy in observe mode (`--observe`)."""
        return dataclasses.replace(self, mode="observe")

    def policy_for(self, agent: Registration) -> Policy:
        """The limits for this agent."""
        policy = self.policy_of(agent.agent_type, agent.name, agent.tags, agent.source)
        return dataclasses.replace(policy, ladder=(Step.WARN,)) if agent.unproved else policy

    def policy_of(self, agent_type: str, name: str, tags: Iterable[str], source: str = "register") -> Policy:
        """`[stall]` and `[kill]`, then the shipped policies, then each matching `[[policy]]`; the last value wins."""
        return _policy(self.config, agent_type, name, tuple(tags), source)


def load(explicit: str | None = None, *, environ: Mapping[str, str] = os.environ, uid: int | None = None) -> Settings:
    """Read the file given by --config or $AGENT_WATCHDOG_CONFIG, or the default one, which may be missing.

    Raises ConfigError with every problem found.
    """
    places = places_for(os.geteuid() if uid is None else uid, environ)
    named = explicit or environ.get("AGENT_WATCHDOG_CONFIG")
    path = named or places.config_file
    try:
        with threads.noted(path), open(path, "rb", opener=_open) as file:
            unsafe = _writable(path, os.fstat(file.fileno()), places.uid)
            text = file.read(_LARGEST + 1)
    except FileNotFoundError:
        if named:
            told = environ.get("AGENT_WATCHDOG_CONFIG")
            by = " (named by $AGENT_WATCHDOG_CONFIG)" if told and os.path.abspath(told) == os.path.abspath(path) else ""
            raise ConfigError([f"{path}: no such file{by}"]) from None
        if os.path.islink(path):  # its target is missing (a disk, a checkout): defaults would be wrong
            there = f"a link to {os.readlink(path)}, where nothing is"
            raise ConfigError([f"{path}: {there}; put that back, or remove the link for all defaults"]) from None
        return settings_of(Config(), None, places)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    try:
        settings = settings_of(parse(text, path, places), path, places)
    except ConfigError as error:
        raise ConfigError([*unsafe, *_with_lines(error.problems, path, text)], error.rest) from None
    if unsafe:
        raise ConfigError(unsafe, settings)
    return settings


def _with_lines(problems: Iterable[str], path: str, text: bytes) -> Iterator[str]:
    """The problems, with the line of each key in the file; tomllib's own errors already have theirs."""
    words = text.decode("utf-8", "replace")
    for problem in problems:
        said = _KEYED.match(problem.removeprefix(f"{path}: "))
        line = line_of(words, said[1]) if said is not None else None
        yield problem if line is None else f"{problem} (at line {line})"


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a FIFO would wait for a writer


def parse(text: bytes, path: str, places: Paths | None = None) -> Config:
    """TOML -> Config. Raises ConfigError with every problem, one line each: `file: key: what is wrong; it must be ...`.

    `places`: the daemon's default paths; if given, contradictions in the rest of a file with errors are reported too.
    """
    if len(text) > _LARGEST:
        raise ConfigError([f"{path}: is larger than {_LARGEST} bytes; use what config/agent-watchdog.toml shows"])
    if _ENDLESS_KEY.search(text):
        raise ConfigError([f"{path}: a key of more than 100 parts; use section.key"])
    words, faults = _decoded(text, path)
    unread: set[str] = set()
    try:
        data = tomllib.loads(words)
    except tomllib.TOMLDecodeError as error:
        rest = salvage(words, f"not TOML: {_twice(words, str(error)) or error}", _SECTIONS)
        data, unread = rest.data, rest.unread
        faults += rest.faults
    except (RecursionError, ValueError) as error:  # tomllib in Python 3.11: deep nesting; int() of over 4,300 digits
        raise ConfigError([f"{path}: {fault}" for fault in (*faults, f"not TOML: {error}")]) from None
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        # In a section with a line left out, no key counts as missing.
        sections = {one.partition(".")[0] for one in unread}
        faults += [explain(dict(one)) for one in found if one["type"] != "missing" or one["loc"][0] not in sections]
    else:
        if not faults:
            return config
    if len(faults) > _MOST:
        faults[_MOST:] = [f"and {len(faults) - _MOST} more problems"]
    told = [f"{path}: {fault}" for fault in faults]
    raise ConfigError(told, None if places is None else _rest(data, path, places, told, unread)) from None


def _decoded(text: bytes, path: str) -> tuple[str, list[str]]:
    """The text of a file, and the errors of its encoding; the text is parsed anyway, to report its other errors.

    Raises ConfigError for a file that is not such a text at all: UTF-16, a program.
    """
    faults, left_out = [], 0
    if text.startswith(_MARK):
        text, left_out = text.removeprefix(_MARK), len(_MARK)
        faults.append("begins with a byte order mark, which TOML does not allow; save it as UTF-8 without one")
    try:
        return text.decode("utf-8"), faults
    except UnicodeDecodeError as error:
        faults.append(f"not UTF-8 (byte {error.start + left_out})")
        if b"\0" in text:
            raise ConfigError([f"{path}: {fault}" for fault in faults]) from None
        return text.decode("utf-8", "replace"), faults


def _twice(text: str, error: str) -> str | None:
    """For a table that is declared twice: both lines, and the remedy. Appending to the shipped file causes this."""
    said = re.match(r"Cannot declare \((.*)\) twice \(at line (\d+)", error)
    if said is None:
        return None
    name = ".".join(re.findall(r"'([^']*)'", said[1]))
    header = re.compile(r"[ \t]*\[[ \t]*" + re.escape(name) + r"[ \t]*\]")
    first = next((number for number, line in enumerate(text.split("\n"), 1) if header.match(line)), None)
    if first is None or first == int(said[2]):
        return None
    return f"[{name}] is declared at lines {first} and {said[2]}; use one [{name}], with the keys of both"


def _rest(
    data: dict[str, Any], path: str, places: Paths, problems: list[str], unread: Iterable[str]
) -> Settings | None:
    """The settings that the valid part of a file gives, if any; adds the problems with those.

    A problem about a key with an error, or about a list that is incomplete here, is not reported again.
    """
    faulty: set[str] = set(unread)
    for _ in range(_MOST):
        try:
            config = Config.model_validate(data)
            break
        except ValidationError as still:
            for one in still.errors(include_url=False):
                place = _left_out(data, one["loc"], missing=one["type"] == "missing")
                if one["type"] != "extra_forbidden":  # an unknown key: nothing depends on it
                    faulty.add(place)
    else:
        return None
    settings, more = _resolved(config, path, places)
    lists, keys = {one for one in faulty if "." not in one}, [one for one in faulty if "." in one]
    for problem in more:
        if re.split(r"[\[:]", problem)[0] not in lists and not any(key in problem for key in keys):
            problems.append(f"{path}: {problem}")
    return settings


def _left_out(data: dict[str, Any], place: tuple[int | str, ...], *, missing: bool) -> str:
    """Remove the value at that place from the file's data; returns its key, or the list of tables that held it."""
    *above, last = place[:-1] if missing and len(place) > 1 else place
    at: Any = data
    try:
        for part in above:
            at = at[part]
        del at[last]
    except (LookupError, TypeError):  # not a key of the file: the branch of a union
        data.pop(str(place[0]), None)
        return str(place[0])
    in_section = len(place) > 1 and isinstance(place[1], str)
    return f"{place[0]}.{place[1]}" if in_section else str(place[0])


def settings_of(config: Config, file: str | None, places: Paths) -> Settings:
    """Resolve paths and check combinations of keys. Raises ConfigError."""
    settings, problems = _resolved(config, file, places)
    if problems:
        raise ConfigError([f"{file or 'defaults'}: {problem}" for problem in problems], settings)
    return settings


def _resolved(config: Config, file: str | None, places: Paths) -> tuple[Settings, list[str]]:
    """The settings, and the contradictions in them."""
    state_dir = config.daemon.state_dir or places.state_dir
    runtime_dir = config.daemon.runtime_dir or places.runtime_dir
    problems = list(_contradictions(config))
    if len(os.fsencode(runtime_dir)) > _SOCKET_ROOM:
        problems.append(
            f"daemon.runtime_dir: {runtime_dir!r} is too long for sockets in it; use at most {_SOCKET_ROOM} bytes"
        )
    if not config.registry.url and not plain_in_url(state_dir):
        problems.append(
            f"daemon.state_dir: {state_dir!r} holds ? or %, which are special in a database URL; use another"
            " directory, or set registry.url"
        )
    registry_url = config.registry.url or f"sqlite:///{state_dir}/registry.db"
    if config.log.file and _is_ours(config.log.file, file, state_dir, runtime_dir, registry_url):
        problems.append(
            f"log.file: {config.log.file!r} is or may become one of the daemon's own files; use a name that"
            " ends in .log, outside the runtime directory"
        )
    hooks = DEFAULT_HOOKS if config.hook is None else config.hook
    settings = Settings(
        config=config,
        file=file,
        mode=config.daemon.mode,
        host=config.daemon.host or None,
        state_dir=state_dir,
        runtime_dir=runtime_dir,
        registry_url=registry_url,
        interval=timedelta(seconds=config.sweep.interval_seconds),
        retention=timedelta(days=config.registry.retention_days),
        bytes_per_user=config.registry.megabytes_per_user << 20,
        hooks=tuple(
            HookSpec(
                name=hook.name,
                on=frozenset(hook.on),
                run=hook.run,
                command=hook.command,
                timeout=timedelta(seconds=hook.timeout_seconds),
                retries=hook.retries,
                needs=hook.needs,
            )
            for hook in hooks
        ),
        sources=(USERS_SOURCES if places.uid else ()) if config.source is None else config.source,
    )
    return settings, problems


def _policy(config: Config, agent_type: str, name: str, tags: tuple[str, ...], source: str) -> Policy:
    entries = tuple(entry for entry in (*SHIPPED_POLICIES, *config.policy) if entry.fits(agent_type, name, tags))
    return _merged(config.stall, config.kill, entries, source in TOLD_OF)


@lru_cache(maxsize=256)
def _merged(stall: StallSection, kill: KillSection, entries: tuple[PolicyEntry, ...], told_of: bool) -> Policy:
    """Merge one policy; cached, as each takes 80 us and 0.8 kB."""
    merged: dict[str, Any] = {**dict(stall), **dict(kill)}
    if told_of:
        merged["ladder"] = (Step.WARN,)
    for entry in entries:
        merged |= {key: value for key, value in dict(entry).items() if value is not None and key != "match"}
    fields = {field.name for field in dataclasses.fields(Policy)}
    values: dict[str, Any] = {}
    for key, value in merged.items():
        if key.endswith("_seconds"):
            key, value = key.removesuffix("_seconds"), timedelta(seconds=value)
        if key in fields:
            values[key] = value
    return Policy(**values)


def _contradictions(config: Config) -> Iterable[str]:
    least = 2 * config.sweep.interval_seconds
    limits = {"stall.after_seconds": config.stall.after_seconds} | {
        f"policy[{number}].after_seconds": entry.after_seconds
        for number, entry in enumerate(config.policy)
        if entry.after_seconds is not None
    }
    for key, after in limits.items():
        if after < least:
            yield (
                f"{key}: {after:g} is less than two sweeps"
                f" (sweep.interval_seconds = {config.sweep.interval_seconds:g}); use at least {least:g}"
            )
    names = [hook.name for hook in config.hook or ()]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"hook: the name {name!r} is used {names.count(name)} times; give each its own name, as logs use it"
    yield from _needs(DEFAULT_HOOKS if config.hook is None else config.hook)
    if not config.cleanup.roots or "/" in config.cleanup.roots:
        yield 'cleanup.roots: must name directories below /; use ["/tmp", "/var/tmp"]'


def _is_ours(log: str, file: str | None, state_dir: str, runtime_dir: str, registry_url: str) -> bool:
    """Whether the log file would be the configuration, the registry, a lock, a pid file or a socket."""
    place, name = os.path.split(log)
    registry = sqlite_file(registry_url)
    kept = registry != "" and log.startswith(registry)  # with its -wal and -shm
    if file is not None and os.path.realpath(log) == os.path.realpath(file):
        return True
    return kept or place == runtime_dir or (place == state_dir and not name.endswith(".log"))


def sqlite_file(registry_url: str) -> str:
    """The path in a SQLite URL; empty for any other database."""
    is_sqlite = registry_url.startswith("sqlite")
    return "/" + registry_url.partition(":///")[2].partition("?")[0].lstrip("/") if is_sqlite else ""


def _needs(hooks: Sequence[HookSection]) -> Iterable[str]:
    """Problems with `needs`: each hook may only name earlier ones, so there are no cycles."""
    names = [hook.name for hook in hooks]
    for number, hook in enumerate(hooks):
        for name in hook.needs:
            key = f"hook[{number}].needs"
            if name not in names:
                yield f"{key}: there is no hook {name!r}{suggest(name, names)}"
            elif name not in names[:number]:
                yield f"{key}: {name!r} is not listed before it; list each hook after those it needs, without a cycle"


def _writable(path: str, found: os.stat_result, uid: int) -> list[str]:
    """Reasons why other users could change the hooks in this file, which run as the agents' owners."""
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError([f"{path}: not a regular file"])
    too_open = stat.S_IWOTH if uid else stat.S_IWOTH | stat.S_IWGRP
    if found.st_mode & too_open or found.st_uid not in (0, uid):
        return [
            f"{path}: mode {stat.S_IMODE(found.st_mode):04o} of uid {found.st_uid}: others could change what"
            f" the daemon runs; run chmod go-w, and make its owner uid {uid}"
        ]
    return []
