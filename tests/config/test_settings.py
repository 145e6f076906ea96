"""The file with every key, what is refused and in which words, and what an agent's limits come to."""

import inspect
import os
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from watchdog import config
from watchdog.config.fields import DRIVERS
from watchdog.config.paths import Paths, places_for
from watchdog.config.schema import (
    DEFAULT_HOOKS,
    SHIPPED_POLICIES,
    USERS_SOURCES,
    Config,
    KillSection,
    PolicyEntry,
    StallSection,
)
from watchdog.config.settings import load, parse, settings_of
from watchdog.core.agent import ENDED, Policy, Registration, Status
from watchdog.core.hooks import BUILT_IN
from watchdog.core.kill import Polite, Step
from watchdog.errors import ConfigError
from watchdog.registry.engines import parse_url

SHIPPED = Path(__file__).parents[2] / "config" / "agent-watchdog.toml"
PLACES = Paths(1000, "/nowhere", "/state", "/run/x")
POLICY_ONLY = {"match", "name", "tag", "type"}


def problems(text: str) -> list[str]:
    """What is wrong with such a file."""
    with pytest.raises(ConfigError) as caught:
        settings_of(parse(text.encode(), "/f.toml"), "/f.toml", PLACES)
    assert caught.value.exit_code == 78
    assert all(problem.startswith("/f.toml: ") for problem in caught.value.problems)
    return [problem.removeprefix("/f.toml: ") for problem in caught.value.problems]


def test_the_shipped_file_says_the_defaults() -> None:
    """As it is, and with every commented key switched on, it changes nothing."""
    text = SHIPPED.read_text(encoding="utf-8")
    assert parse(text.encode(), "f") == Config()
    shown = parse(uncommented(text), "f")
    assert shown.hook == DEFAULT_HOOKS
    assert shown.policy == SHIPPED_POLICIES
    assert shown.source == USERS_SOURCES
    assert shown.model_copy(update={"hook": None, "policy": (), "source": None}) == Config()


def test_the_shipped_file_names_every_key() -> None:
    """Each below its own section, with at least one line of reason before it."""
    text = SHIPPED.read_text(encoding="utf-8")
    for section, field in Config.model_fields.items():
        assert re.search(rf"^#? ?\[\[?{section}\]\]?", text, re.M), section
        body = text.split(f"[{section}]", 1)[1].split("\n[", 1)[0]
        for key in keys_of(field.annotation) - (POLICY_ONLY if section == "policy" else set()):
            if section not in ("policy", "source"):
                assert re.search(rf"\b{key} = ", body), f"{section}.{key}"
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if re.match(r"#[a-z_]+ = ", line):
            assert lines[number - 1].startswith("#"), f"{line}: its reason is missing above it in config/schema.py"


def test_a_policy_may_hold_each_key_that_is_an_agents_own() -> None:
    """A key of [stall] or [kill] is in PolicyEntry too, with the same check; but for those that bind all agents."""
    sections = {**StallSection.model_fields, **KillSection.model_fields}
    for key in sections.keys() - PolicyEntry.model_fields.keys() - {"parallel", "max_per_minute"}:
        pytest.fail(f"watchdog/config/schema.py: add {key} to PolicyEntry, or to the keys that this test leaves out")
    for key in PolicyEntry.model_fields.keys() - sections.keys() - {"match"}:
        pytest.fail(f"watchdog/config/schema.py: add {key} to StallSection or KillSection, it is in PolicyEntry alone")
    limits = {field.name for field in fields(Policy)}
    for key in PolicyEntry.model_fields.keys() - {"match"}:
        name = key.removesuffix("_seconds")
        assert name in limits, f"watchdog/core/agent.py: add {name} to Policy, or {key} of a [[policy]] changes nothing"
        entry, section = (inspect.get_annotations(one)[key] for one in (PolicyEntry, holder_of(key)))
        assert entry == section | None, f"watchdog/config/schema.py: {key} of PolicyEntry has another check"


def holder_of(key: str) -> type[BaseModel]:
    """The section of a key that may be set per agent."""
    return StallSection if key in StallSection.model_fields else KillSection


def test_each_key_is_read() -> None:
    """By its name, or an agent's own by that of its `Policy` field; a key that no module reads changes nothing."""
    package = Path(config.__file__).parent.parent
    modules = [path for path in package.rglob("*.py") if path.name != "schema.py"]
    read = set(re.findall(r"\.(\w+)\b", "\n".join(path.read_text() for path in modules)))
    limits = {field.name for field in fields(Policy)}
    for section, part in Config.model_fields.items():
        for key in keys_of(part.annotation):
            name = key.removesuffix("_seconds")
            assert (name if name in limits else key) in read, f"{section}.{key} is read by no module in watchdog/"


def uncommented(text: str) -> bytes:
    """The file with every default switched on."""
    return re.sub(r"^#(?=\[\[|[a-z_]+ = )", "", text, flags=re.M).encode()


def keys_of(annotation: Any) -> set[str]:
    """The keys of the section models in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return set(annotation.model_fields)
    return set().union(*map(keys_of, getattr(annotation, "__args__", ())))


def test_all_problems_are_told_at_once_with_their_key() -> None:
    """Who mends a file should need one try."""
    found = problems(
        """
        [stall]
        after_second = 100
        confirm_sweeps = 0
        linger_seconds = "1m"
        [kill]
        ladder = ["warn", "murder"]
        polite = "never"
        [stal]
        after_seconds = 1
        [[hook]]
        name = "x"
        [[policy]]
        match = { typ = "claude" }
        grace_seconds = -1
        [metrics]
        listen = "9477"
        [daemon]
        state_dir = "relative"
        """
    )
    for key, words in {
        "stall.after_second": "unknown key; did you mean 'after_seconds'?",
        "stall.confirm_sweeps": "0 is wrong; it must be greater than or equal to 1 (default: 2)",
        "stall.linger_seconds": "'1m' is wrong; it must be a valid number (default: 60)",
        "kill.ladder[1]": "'murder' is wrong; it must be 'warn', 'nudge', 'stop' or 'kill'",
        "kill.polite": "'never' is wrong; it must be 'main_first' or 'all' (default: 'main_first')",
        "stal": "unknown key; did you mean 'stall'?",
        "hook[0]": f"needs either run (one of {', '.join(BUILT_IN)}) or command (a list of words)",
        "policy[0].match.typ": "unknown key; did you mean 'type'?",
        "policy[0].grace_seconds": "-1 is wrong; it must be greater than or equal to 0",
        "metrics.listen": "'9477' must be HOST:PORT, as in 127.0.0.1:9477 or [::1]:9477; no DNS name",
        "daemon.state_dir": "'relative' must be an absolute path",
    }.items():
        assert f"{key}: {words}" in found
    assert len(found) == 11


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[stall]\nafter_seconds = 15",
            "stall.after_seconds: 15 is less than two sweeps (sweep.interval_seconds = 10)",
        ),
        ("[[policy]]\nmatch = {tag = 'x'}\nafter_seconds = 5", "policy[0].after_seconds: 5 is less than two sweeps"),
        (
            "[[hook]]\nname='a'\nrun='temp_dir'\n[[hook]]\nname='a'\nrun='worktree'",
            "hook: the name 'a' is used 2 times",
        ),
        ("[[hook]]\nname='a'\nrun='temp_dir'\ncommand=['x']", "hook[0]: needs either run"),
        ("[[hook]]\nname='a'\nrun='temp_dir'\nneeds=['wrktree']", "hook[0].needs: there is no hook 'wrktree'"),
        ("[[hook]]\nname='a'\nrun='temp_dir'\nneeds=['a']", "hook[0].needs: 'a' is not listed before it"),
        (
            "[[hook]]\nname='a'\nrun='temp_dir'\nneeds=['b']\n[[hook]]\nname='b'\nrun='worktree'\nneeds=['a']",
            "hook[0].needs: 'b' is not listed before it; list each hook after those it needs, without a cycle",
        ),
        ("[[hook]]\nname='a'\nrun='temp_dir'\non=['running']", "hook[0]: on: running: hooks run after the end"),
        (
            "[[hook]]\nname='a'\nrun='rm -rf'",
            "hook[0].run: 'rm -rf' is wrong; it must be 'pane', 'git_locks', 'worktree', ",
        ),
        ("[[policy]]\nmatch = {}", "policy[0].match: needs at least one of type, name, tag"),
        ("[[policy]]\nafter_seconds = 50", "policy[0].match: is missing"),
        ("[[source]]\nkind='other'\npath='/x'", "source[0]: kind: 'other': this version has no such source"),
        ("[notify]\non = ['agent.stalled']", "notify: needs both on (events) and command"),
        (
            "[notify]\non = ['agent.stalld']\ncommand=['x']",
            "notify.on[0]: 'agent.stalld' is not an event; did you mean",
        ),
        (
            "[control]\nadmin_group = 'no-such-group-1'",
            "control.admin_group: 'no-such-group-1' is not a group of this machine",
        ),
        ("[registry]\nurl = 'mysql://h/x'", "registry.url: 'mysql://h/x' must be a URL of sqlite or postgresql"),
        ("[registry]\nurl = 'registry.db'", "registry.url: 'registry.db' must be a URL of sqlite or postgresql"),
        ("[registry]\nurl = 'sqlite:///x.db'", "registry.url: 'sqlite:///x.db' must name an absolute file"),
        (
            "[log]\nfile = '/no/such/place/x.log'",
            "log.file: '/no/such/place/x.log' there is no directory /no/such/place",
        ),
        ("[log]\nfile = 'x.log'", "log.file: 'x.log' must be an absolute path"),
        (
            "[kill]\nladder = ['kill', 'warn']",
            "kill.ladder: ['kill', 'warn'] must be in order, each step once; use ['warn', 'kill']",
        ),
        (
            "[kill]\nladder = ['warn', 'warn']",
            "kill.ladder: ['warn', 'warn'] must be in order, each step once; use ['warn']",
        ),
        (
            "[[policy]]\nmatch = {tag = 'x'}\nladder = ['kill', 'kill']",
            "policy[0].ladder: ['kill', 'kill'] must be in order, each step once; use ['kill']",
        ),
        ("[kill]\nspare = ['']", "kill.spare[0]: '' is wrong"),
        ("[[policy]]\nmatch = {tag = 'x'}\nspare = ['']", "policy[0].spare[0]: '' is wrong"),
        ("[cleanup]\nroots = ['/']", "cleanup.roots: must name directories below /"),
        ("[cleanup]\nroots = ['tmp']", "cleanup.roots[0]: 'tmp' must be an absolute path"),
        (f"[daemon]\nruntime_dir = '/{'x' * 70}'", "daemon.runtime_dir: "),
        ("[sweep]\ninterval_seconds = true", "sweep.interval_seconds: True is wrong"),
        ("[sweep]\ninterval_seconds = nan", "sweep.interval_seconds: nan is wrong"),
        ("[stall]\nafter_seconds = inf", "stall.after_seconds: inf is wrong"),
        ("stall = 5", "stall: 5 is wrong"),
        ("[stall", "not TOML: "),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, words: str) -> None:
    """With the key and, where there is one, the right form."""
    (found,) = problems(text)
    assert found.startswith(words)


@pytest.mark.parametrize(
    "text",
    [
        "[stall]\nconfirm_sweeps = 1",
        "[kill]\nladder = ['warn', 'nudge', 'stop', 'kill']",
        "[log]\nfile = '/tmp/x.log'",
        *(f"[registry]\nurl = '{driver}:////h/x'" for driver in DRIVERS),
    ],
)
def test_what_can_be_meant_is_taken(text: str) -> None:
    """One confirming look is allowed (after a start there are two anyway); the registry takes the same URLs."""
    config = parse(text.encode(), "file")
    if config.registry.url:
        parse_url(config.registry.url)


def test_a_user_without_a_file_gets_the_defaults() -> None:
    """The default file may be missing."""
    environ = {"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/user/5"}
    settings = load(environ=environ, uid=5)
    assert (settings.file, settings.mode, settings.host) == (None, "enforce", None)
    assert settings.registry_url == "sqlite:////home/u/.local/state/agent-watchdog/registry.db"
    assert settings.runtime_dir == "/run/user/5/agent-watchdog"
    assert settings.interval == timedelta(seconds=10)
    assert settings.observing().observe
    assert [(hook.name, hook.run) for hook in settings.hooks] == [(name, name) for name in BUILT_IN]
    hooks = {hook.name: hook for hook in settings.hooks}
    assert (hooks["pane"].on, hooks["pane"].retries) == (ENDED - {Status.STOPPED}, 0)
    assert hooks["git_locks"].on == ENDED
    assert hooks["worktree"].on == ENDED - {Status.STOPPED}
    assert (hooks["temp_dir"].on, hooks["temp_dir"].timeout) == (ENDED, timedelta(seconds=60))
    assert hooks["registry_entry"].on == ENDED


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_a_file_that_was_named_must_be_there(tmp_path: Path, how: str) -> None:
    """A typing error in --config must not start a daemon with other limits."""
    missing = str(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="no such file"):
        if how == "flag":
            load(missing, environ={"HOME": "/h"})
        else:
            load(environ={"HOME": "/h", "AGENT_WATCHDOG_CONFIG": missing})


def test_the_file_is_found_by_flag_then_environment_then_place(tmp_path: Path) -> None:
    """In this order."""
    for name in ("flag", "environment", "agent-watchdog/agent-watchdog"):
        path = tmp_path / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'[daemon]\nhost = "{name}"\n')
        path.chmod(0o600)
    environ = {"HOME": "/h", "XDG_CONFIG_HOME": str(tmp_path)}
    uid = os.geteuid() or 1  # as a user in any case; root's own file belongs to uid 0, which is trusted
    assert load(environ=environ, uid=uid).host == "agent-watchdog/agent-watchdog"
    environ["AGENT_WATCHDOG_CONFIG"] = str(tmp_path / "environment.toml")
    assert load(environ=environ, uid=uid).host == "environment"
    assert load(str(tmp_path / "flag.toml"), environ=environ, uid=uid).host == "flag"


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """Its hooks run with other people's rights; nor is a directory or a pipe read as one."""
    path = tmp_path / "f.toml"
    path.write_text("")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match=r"mode 0666.*run chmod go-w"):
        load(str(path), environ={"HOME": "/h"})
    with pytest.raises(ConfigError, match=r"cannot be read|not a regular file"):
        load(str(tmp_path), environ={"HOME": "/h"})
    path.chmod(0o664)
    with pytest.raises(ConfigError, match="mode 0664"):
        load(str(path), environ={}, uid=0)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="not a regular file"):
        load(str(tmp_path / "fifo"), environ={"HOME": "/h"})


def test_the_defaults_of_the_file_and_of_the_types_agree() -> None:
    """Policy() in a test of the core is what an agent gets without a file."""
    policy = settings_of(Config(), None, PLACES).policy_of("", "a", ())
    assert policy == Policy(spare=Config().kill.spare)


def reg(agent_type: str = "", name: str = "n", tags: Iterable[str] = ()) -> Registration:
    """An agent as it registered."""
    return Registration("id", name, 1000, "h", "b", agent_type=agent_type, tags=tuple(tags))


def test_policies_are_laid_over_each_other_and_the_last_wins() -> None:
    """A policy for a shipped type that says nothing of `after` leaves it at 900 seconds."""
    text = """
        [stall]
        after_seconds = 60
        [kill]
        grace_seconds = 3
        [[policy]]
        match = { type = "claude" }
        ladder = ["warn", "kill"]
        polite = "all"
        [[policy]]
        match = { type = "claude", tag = "night" }
        after_seconds = 3600
        grace_seconds = 30
        [[policy]]
        match = { name = "quick" }
        after_seconds = 20
        nudge_command = ["tell", "me"]
        exit_keys = ["/exit"]
        spare = ["tmux: server"]
    """
    settings = settings_of(parse(text.encode(), "f"), "f", PLACES)
    plain, claude = settings.policy_for(reg()), settings.policy_for(reg("claude"))
    assert (plain.after, plain.grace, plain.ladder) == (timedelta(seconds=60), timedelta(seconds=3), (Step.KILL,))
    assert (claude.after, claude.grace) == (timedelta(seconds=900), timedelta(seconds=3))
    assert (claude.ladder, claude.polite) == ((Step.WARN, Step.KILL), Polite.ALL)
    night = settings.policy_for(reg("claude", tags=["x", "night"]))
    assert (night.after, night.grace) == (timedelta(hours=1), timedelta(seconds=30))
    assert settings.policy_for(reg("claude", "another")) is claude, "a thousand of one kind share one"
    assert settings.policy_for(reg("claude", "quick", ["night"])).after == timedelta(seconds=20)
    assert settings.policy_for(reg("codex")).after == timedelta(seconds=900)


def test_a_persons_own_daemon_reads_claude_codes_list_of_its_sessions() -> None:
    """By itself, until the file says otherwise; root's reads nobody's unasked."""
    users, roots = places_for(1000, {"HOME": "/h"}), places_for(0, {})
    assert settings_of(Config(), None, users).sources == USERS_SOURCES
    assert settings_of(Config(), None, roots).sources == ()
    assert settings_of(parse(b"source = []", "f"), "f", users).sources == ()
    named = parse(b"[[source]]\nkind = 'claude'\npath = '/h/c'", "f")
    assert [source.path for source in settings_of(named, "f", roots).sources] == ["/h/c"]


def test_who_was_only_told_of_is_not_ended_until_a_policy_says_more() -> None:
    """By a vendor hook, or by a vendor's own list of its sessions; `[kill]` alone says nothing of them."""
    text = b"""
        [kill]
        ladder = ["kill"]
        [[policy]]
        match = { type = "codex" }
        ladder = ["warn", "kill"]
    """
    settings = settings_of(parse(text, "f"), "f", PLACES)
    for source in ("hook", "claude"):
        assert settings.policy_for(replace(reg("claude"), source=source)).ladder == (Step.WARN,)
        assert settings.policy_for(replace(reg("codex"), source=source)).ladder == (Step.WARN, Step.KILL)
    assert settings.policy_for(replace(reg("claude"), source="run")).ladder == (Step.KILL,)


def test_systemd_and_xdg_name_the_places() -> None:
    """Root takes systemd's, a user XDG's; a relative XDG path is none."""
    root = places_for(0, {"STATE_DIRECTORY": "/s:/t", "RUNTIME_DIRECTORY": "/r", "XDG_RUNTIME_DIR": "/run/user/1000"})
    assert (root.state_dir, root.runtime_dir, root.config_file) == (
        "/s",
        "/r",
        "/etc/agent-watchdog/agent-watchdog.toml",
    )
    assert places_for(0, {}).state_dir == "/var/lib/agent-watchdog"
    user = places_for(7, {"HOME": "/h", "STATE_DIRECTORY": "/h/.config/x", "XDG_STATE_HOME": "relative"})
    assert (user.state_dir, user.runtime_dir) == ("/h/.local/state/agent-watchdog", "/tmp/agent-watchdog-7")


def test_a_section_that_is_appended_to_the_shipped_file_is_named_with_both_lines() -> None:
    """O19: its headers stand there already, with their keys as comments below."""
    text = SHIPPED.read_text(encoding="utf-8")
    first = text.splitlines().index("[stall]") + 1
    last = len(text.splitlines()) + 1
    assert problems(text + "[stall]\nafter_seconds = 60\n") == [
        f"not TOML: [stall] is declared at lines {first} and {last}; use one [stall], with the keys of both"
    ]
    assert problems("a = 1\na = 2\n")[0].startswith("not TOML: a is set at lines 1 and 2; keep one")


def test_a_default_file_that_is_a_link_to_nothing_is_no_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said is away: to start with all defaults instead could kill where it said `observe`."""
    monkeypatch.delenv("AGENT_WATCHDOG_CONFIG", raising=False)
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    file = tmp_path / "agent-watchdog" / "agent-watchdog.toml"
    assert load(environ=environ, uid=1000).file is None
    file.parent.mkdir()
    file.symlink_to("/nowhere/x.toml")
    with pytest.raises(ConfigError, match=r"a link to /nowhere/x\.toml, where nothing is; put that back, or remove"):
        load(environ=environ, uid=1000)
