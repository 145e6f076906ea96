"""Hostile and slipped configurations: one clear line for each fault, with file and key; nothing is guessed."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from watchdog.config.schema import DEFAULT_HOOKS, Config
from watchdog.config.settings import load
from watchdog.core.agent import Status
from watchdog.core.hooks import BUILT_IN
from watchdog.errors import ConfigError

DAEMON = Path(sys.executable).parent / "agent-watchdogd"

# What stands in the file -> how the one problem begins (after the file's name). tests/test_config.py has as many more.
TEXTS: dict[str, tuple[bytes, str]] = {
    "grace is negative": (b"[kill]\ngrace_seconds = -1", "kill.grace_seconds: -1 is wrong; it must be greater than"),
    "grace is text": (
        b"[kill]\ngrace_seconds = '10s'",
        "kill.grace_seconds: '10s' is wrong; it must be a valid number",
    ),
    "grace is nan": (b"[kill]\ngrace_seconds = nan", "kill.grace_seconds: nan is wrong"),
    "grace is endless": (b"[kill]\ngrace_seconds = inf", "kill.grace_seconds: inf is wrong"),
    "grace is a century": (
        b"[kill]\ngrace_seconds = 4e9",
        "kill.grace_seconds: 4000000000.0 is wrong; it must be less",
    ),
    "grace is beyond floats": (b"[kill]\ngrace_seconds = 1" + b"0" * 400, "kill.grace_seconds: "),
    "grace is beyond int()": (b"[kill]\ngrace_seconds = 1" + b"0" * 5000, "not TOML: "),
    "a typing error": (b"[stall]\nstal_after = 5", "stall.stal_after: unknown key; "),
    "a policy word": (b"[kill]\npolite = 'fial'", "kill.polite: 'fial' is wrong; it must be 'main_first' or 'all'"),
    "looks rarer than stalls": (b"[sweep]\ninterval_seconds = 100", "stall.after_seconds: 120 is less than two sweeps"),
    "a look that never comes": (b"[sweep]\ninterval_seconds = 0", "sweep.interval_seconds: 0 is wrong"),
    "half a look": (b"[stall]\nconfirm_sweeps = 1.5", "stall.confirm_sweeps: 1.5 is wrong; it must be a valid integer"),
    "true is not a number": (b"[kill]\nparallel = true", "kill.parallel: True is wrong"),
    "a date is not a number": (
        b"[kill]\ngrace_seconds = 2026-01-01",
        "kill.grace_seconds: 2026-01-01 is wrong; it must be a",
    ),
    "a time is not a number": (
        b"[stall]\nafter_seconds = 00:02:00",
        "stall.after_seconds: 00:02:00 is wrong; it must be a v",
    ),
    "a word is no list": (b"[kill]\nladder = 'kill'", "kill.ladder: 'kill' is wrong; it must be a list"),
    "a list of nothing": (b"[kill]\nladder = []", "kill.ladder: [] is wrong; it must be a list of at least one"),
    "a word is no table": (b"[[policy]]\nmatch = 'claude'", "policy[0].match: 'claude' is wrong; it must be a table"),
    "a list is no word": (
        b"[[policy]]\nmatch = { type = ['a'] }",
        "policy[0].match.type: ['a'] is wrong; it must be a te",
    ),
    "a pattern of names": (
        b"[[policy]]\nmatch = { name = 'w-*' }",
        "policy[0].match.name: 'w-*' matches no agent: a name",
    ),
    "a name of nothing": (
        b"[[policy]]\nmatch = { name = '' }",
        "policy[0].match.name: '' matches no agent: a name must",
    ),
    "a name that is a target": (
        b"[[policy]]\nmatch = { name = 'all' }",
        "policy[0].match.name: 'all' matches no agent: ",
    ),
    "a pattern of types": (
        b"[[policy]]\nmatch = { type = 'cl*' }",
        "policy[0].match.type: 'cl*' must be one whole",
    ),
    "a type with a space": (
        b"[[policy]]\nmatch = { type = 'a ' }",
        "policy[0].match.type: 'a ' must be one whole",
    ),
    "a pattern of tags": (b"[[policy]]\nmatch = { tag = 'b?' }", "policy[0].match.tag: 'b?' must be one whole word"),
    "a tag of nothing": (b"[[policy]]\nmatch = { tag = '' }", "policy[0].match.tag: '' is wrong"),
    "a path that is spared": (b"[kill]\nspare = ['/bin/tmux']", "kill.spare[0]: '/bin/tmux' must be a program's name"),
    "a pattern that is spared": (b"[kill]\nspare = ['pg*']", "kill.spare[0]: 'pg*' must be a program's name"),
    "a group with NUL": (b'[control]\nadmin_group = "a\\u0000"', "control.admin_group: 'a\\x00' is not a group"),
    "a directory that cuts a URL": (b"[daemon]\nstate_dir = '/a?b'", "daemon.state_dir: '/a?b' holds ? or %"),
    "a directory that a URL reads": (b"[daemon]\nstate_dir = '/a%41'", "daemon.state_dir: '/a%41' holds ? or %"),
    "a parameter of SQLite": (b"[registry]\nurl = 'sqlite:////x.db?mode=ro'", "registry.url: 'sqlite://…' must be pr"),
    "a registry with % in it": (
        b"[registry]\nurl = 'sqlite:////x%41.db'",
        "registry.url: 'sqlite:////x%41.db' must",
    ),
    "a registry with NUL": (b'[registry]\nurl = "sqlite:////x\\u0000"', "registry.url: 'sqlite:////x\\x00' must be"),
    "a list is not a number": (b"[kill]\ngrace_seconds = [10]", "kill.grace_seconds: [10] is wrong"),
    "a table is not a number": (b"[kill.grace_seconds]\nx = 1", "kill.grace_seconds: {'x': 1} is wrong"),
    "a number is no table": (b"kill = 3", "kill: 3 is wrong"),
    "a table is no list": (b"[policy]\nafter_seconds = 300", "policy: "),
    "a list is no table": (b"[[kill]]\ngrace_seconds = 5", "kill: "),
    "twice the same key": (
        b"[kill]\ngrace_seconds = 1\ngrace_seconds = 2",
        "not TOML: kill.grace_seconds is set at lines 2 and 3; keep one of them",
    ),
    "twice the same section": (
        b"[stall]\n# [stall]\n[kill]\n [ stall ] # again",
        "not TOML: [stall] is declared at lines 1 and 4; use one [stall], with the keys of both",
    ),
    "cut off in the middle": (b"[kill]\ngrace_sec", "not TOML: "),
    "an unended string": (b"[daemon]\nhost = 'x", "not TOML: "),
    "NUL bytes": (b"[daemon]\nhost = 'a\x00b'", "not TOML: "),
    "a key with a line end": (b'"a\\nb" = 1', "'a\\nb': unknown key; "),
    "a key that clears the terminal": (b'[kill]\n"\\u001b[2J" = 1', "kill.'\\x1b[2J': unknown key"),
    "a key without end": (b"x" * 100_000 + b" = 1", "'" + "x" * 100 + "': unknown key; "),
    "a key of parts without end": (b"a." * 20_000 + b"a = 1", "a key of more than 100 parts"),
    "a key of nothing": (b"'' = 1", "'': unknown key; "),
    "a host that holds an @": (b"[daemon]\nhost = 'a@b'", "daemon.host: 'a@b' must hold no @"),
    "a byte order mark": (b"\xef\xbb\xbf[kill]\ngrace_seconds = 5", "begins with a byte order mark, "),
    "another encoding": ("[daemon]\nhost = 'ä'".encode("latin-1"), "not UTF-8 (byte 17)"),
    "UTF-16": ("[kill]".encode("utf-16"), "not UTF-8 (byte 0)"),
    "JSON": (b'{"kill": {"grace_seconds": 5}}', "not TOML: "),
    "a program": (Path(sys.executable).read_bytes()[:100_000], "not UTF-8"),
    "nested without end": (b"x = " + b"[" * 100_000, "not TOML: "),
    "ten megabytes": (b"#" * 10_000_000, "is larger than"),
    "a root of nothing": (b"[cleanup]\nroots = ['']", "cleanup.roots[0]: "),
    "the root of all": (b"[cleanup]\nroots = ['/tmp/..']", "cleanup.roots: must name directories below /"),
    "a root with dots": (b"[cleanup]\nroots = ['..']", "cleanup.roots[0]: '..' must be an absolute path"),
    "a variable is not replaced": (b"[cleanup]\nroots = ['$HOME/tmp']", "cleanup.roots[0]: '$HOME/tmp' must be an abs"),
    "a tilde is not replaced": (b"[daemon]\nstate_dir = '~/x'", "daemon.state_dir: '~/x' must be an absolute path"),
    "a path with a line end": (b'[daemon]\nstate_dir = "/x\\ny"', "daemon.state_dir: '/x\\ny' must be printable"),
    "a path with NUL": (b'[daemon]\nstate_dir = "/x\\u0000"', "daemon.state_dir: '/x\\x00' must be printable"),
    "the root of all, with two slashes": (b"[cleanup]\nroots = ['//']", "cleanup.roots: must name directories below /"),
    "a host with NUL": (b'[daemon]\nhost = "a\\u0000b"', "daemon.host: 'a\\x00b' must be printable"),
    "a host with a line end": (b'[daemon]\nhost = "a\\n"', "daemon.host: 'a\\n' must be printable"),
    "a host without end": (b"[daemon]\nhost = '" + b"x" * 300 + b"'", "daemon.host: "),
    "a hook below wherever we are": (
        b"[[hook]]\nname = 'x'\ncommand = ['bin/x']",
        "hook[0].command: ['bin/x'] must begin with an absolute path",
    ),
    "a hook by dots": (b"[[hook]]\nname = 'x'\ncommand = ['./x']", "hook[0].command: ['./x'] must begin with an abs"),
    "a hook with NUL": (b'[[hook]]\nname = "x"\ncommand = ["x", "\\u0000"]', "hook[0].command: ['x', '\\x00'] must"),
    "a relative notify": (
        b"[notify]\non = ['daemon.ready']\ncommand = ['../x']",
        "notify.command: ['../x'] must begin with an absolute path",
    ),
    "no roots": (b"[cleanup]\nroots = []", "cleanup.roots: must name directories below /"),
    "a hook's name as a path": (b"[[hook]]\nname = '../x'\nrun = 'worktree'", "hook[0].name: '../x' is wrong"),
    "a hook that is a line of shell": (b"[[hook]]\nname = 'x'\ncommand = 'rm -rf /'", "hook[0].command: "),
    "a hook of nothing": (b"[[hook]]\nname = 'x'\ncommand = []", "hook[0]: needs either run"),
    "a hook that never runs": (b"[[hook]]\nname = 'x'\nrun = 'worktree'\non = []", "hook[0].on: "),
    "told after the end": (
        b"[notify]\non = ['daemon.failed']\ncommand = ['x']",
        "notify.on[0]: 'daemon.failed' is an event that is never passed to the command; instead: OnFailure="
        " in the unit",
    ),
    "told of itself": (
        b"[notify]\non = ['notify.failed']\ncommand = ['x']",
        "notify.on[0]: 'notify.failed' is an event that is never passed to the command; instead: none",
    ),
    "no port": (b"[metrics]\nlisten = 'localhost'", "metrics.listen: 'localhost' must be HOST:PORT"),
    "a port too high": (
        b"[metrics]\nlisten = '127.0.0.1:99999'",
        "metrics.listen: '127.0.0.1:99999' must be HOST:PORT",
    ),
    "a password": (b"[registry]\nurl = 'mysql://u:secret@h/d'", "registry.url: 'mysql://…' must be a URL"),
    "a password with marks": (b"[registry]\nurl = 'oracle://me:se/cr@et@host/x'", "registry.url: 'oracle://…' must be"),
    "no scheme": (b"[registry]\nurl = 'me:secret@host/x'", "registry.url: '…' must be a URL"),
    "in the query": (b"[registry]\nurl = 'pg://h/d?user=me&password=secret'", "registry.url: 'pg://…' must be"),
    "a port of letters": (
        b"[registry]\nurl = 'postgresql://me:secret@h:x/d'",
        "registry.url: 'postgresql://…' must have",
    ),
}


def problems(path: Path) -> list[str]:
    """What is said of such a file, without its name."""
    with pytest.raises(ConfigError) as caught:
        load(str(path), environ={"HOME": "/h"})
    assert caught.value.exit_code == 78
    assert all(problem.startswith(f"{path}: ") for problem in caught.value.problems)
    return [problem.removeprefix(f"{path}: ") for problem in caught.value.problems]


@pytest.mark.parametrize(("text", "says"), TEXTS.values(), ids=TEXTS)
def test_one_clear_line_for_each(tmp_path: Path, text: bytes, says: str) -> None:
    """No traceback, no guess, no second complaint about the same thing, and short enough to be read at night."""
    path = tmp_path / "f.toml"
    path.write_bytes(text)
    path.chmod(0o600)

    (found,) = problems(path)

    assert found.startswith(says)
    assert len(found) < 1000
    assert found.isprintable()


@pytest.mark.parametrize(
    "log",
    [
        "{}/f.toml",
        "{}/s/registry.db",
        "{}/s/registry.db-wal",
        "{}/s/x",
        "{}/r/agent-watchdog.pid",
        "{}/r/a.log",
        "{}/l",
    ],
)
def test_no_log_is_written_into_a_file_that_the_daemon_works_by(log: str) -> None:
    """Lines of JSON would spoil it: the file of the configuration itself, also by a link, the registry, a lock."""
    with tempfile.TemporaryDirectory() as directory:  # sockets need a short one
        path, log = Path(directory, "f.toml"), log.format(directory)
        for name in ("s", "r"):
            Path(directory, name).mkdir()
        Path(directory, "l").symlink_to(path)
        text = f"""[daemon]\nstate_dir = "{directory}/s"\nruntime_dir = "{directory}/r"\n[log]\nfile = "{log}"\n"""
        path.write_text(text)
        path.chmod(0o600)

        assert problems(path) == [
            f"log.file: {log!r} is or may become one of the daemon's own files; use a name that ends in .log,"
            " outside the runtime directory (at line 5)"
        ]
        path.write_text(text.replace(log, f"{directory}/s/a.log"))
        assert load(str(path)).log.file == f"{directory}/s/a.log"


def test_of_another_file_than_was_meant_not_all_is_told(tmp_path: Path) -> None:
    """5,000 lines would bury the first one."""
    path = tmp_path / "f.toml"
    path.write_text("".join(f"key{number} = 1\n" for number in range(5000)))
    path.chmod(0o600)

    found = problems(path)

    assert found[0].startswith("key0: unknown key")
    assert found[50:] == ["and 4950 more problems"]


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a directory": (os.mkdir, "cannot be read: Is a directory"),
    "a FIFO": (os.mkfifo, "not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "a link to itself": (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
    "a link to nothing": (lambda path: path.symlink_to("/nowhere/at/all"), "no such file"),
    "a name too long": (lambda path: None, "cannot be read: File name too long"),
    "below a file": (lambda path: None, "cannot be read: Not a directory"),
}


@pytest.mark.parametrize("what", FILES)
def test_what_is_no_file_is_said_to_be_none(tmp_path: Path, what: str) -> None:
    """And nobody waits for it."""
    path = {"a name too long": tmp_path / ("x" * 300), "below a file": Path(sys.executable) / "f"}.get(what)
    path = path or tmp_path / "f.toml"
    make, says = FILES[what]
    make(path)

    (found,) = problems(path)

    assert found.startswith(says) or (what == "a directory" and found == "not a regular file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    """Whose mode is too strict for us."""
    path = tmp_path / "f.toml"
    path.write_text("")
    path.chmod(0)

    assert problems(path) == ["cannot be read: Permission denied"]


def test_the_command_says_all_at_once_and_exits_78(tmp_path: Path) -> None:
    """`--check` is fit for ExecStartPre=; a password stays secret."""
    path = tmp_path / "f.toml"
    path.write_text('[kill]\ngrace_seconds = -1\n[registry]\nurl = "oracle://me:secret@host/x"\n[kil]\n')
    path.chmod(0o600)

    done = subprocess.run([DAEMON, "--check", "--config", path], capture_output=True, text=True, timeout=30)

    assert done.returncode == 78
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr
    for key in ("kill.grace_seconds", "registry.url", "kil: unknown key"):
        assert f"{path}: {key}" in done.stderr
    path.write_text("[kill]\n")
    done = subprocess.run([DAEMON, "--check", "--config", path], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{path}: fine\n", "")


def test_the_daemon_says_its_version() -> None:
    """As the client does."""
    done = subprocess.run([DAEMON, "--version"], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, f"agent-watchdogd {importlib.metadata.version('agent-watchdogd')}\n")


def test_what_the_file_leads_to_is_looked_at(tmp_path: Path) -> None:
    """A hook's program that is not there, and a unit that leaves no room for sweeps: told before a start."""
    path = tmp_path / "f.toml"
    path.write_text('[[hook]]\nname = "x"\ncommand = ["/nowhere/prog"]\n[log]\nfile = "/proc/x.log"\n')
    path.chmod(0o600)

    done = subprocess.run([DAEMON, "--check", "--config", path], capture_output=True, text=True, timeout=30)

    assert (done.returncode, done.stdout) == (0, f"{path}: fine\n")
    assert f"warning: {path}: hook 'x': command: /nowhere/prog does not exist" in done.stderr
    path.write_text("")
    environ = {**os.environ, "WATCHDOG_USEC": "5000000", "NOTIFY_SOCKET": "/nowhere/at/all"}
    done = subprocess.run(
        [DAEMON, "--check", "--config", path], env=environ, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 78
    assert "WatchdogSec=5 in the unit is below three sweep intervals" in done.stderr


def test_directories_that_a_start_would_refuse_are_told_before_it() -> None:
    """Nothing is made by asking; a log is a file."""
    with tempfile.TemporaryDirectory() as directory:
        path, open_to_all, file = (Path(directory, name) for name in ("f.toml", "open", "file"))
        open_to_all.mkdir()
        open_to_all.chmod(0o777)
        file.touch()
        text = '[daemon]\nstate_dir = "{}"\nruntime_dir = "{}"\n'

        done = check(path, text.format(open_to_all, file) + f"""[log]\nfile = "{directory}"\n""")

        assert done.returncode == 78
        assert done.stderr == (
            f"agent-watchdogd: warning: {path}: log.file: {directory} is a link or a directory; the log goes to stderr"
            " meanwhile; use a file\n"
            f"agent-watchdogd: {open_to_all}: mode 0777, others may write there; do: chmod 700 {open_to_all}\n"
            f"agent-watchdogd: {file}: is a file, not a directory; do: mv -T {file} {file}.aside\n"
        )
        assert check(path, text.format(f"{directory}/x", f"{directory}/y")).returncode == 0
        assert not Path(directory, "x").exists()


def test_a_slip_in_the_file_hides_nothing_else(tmp_path: Path) -> None:
    """O14: what several keys come to, and what they lead to, is told beside an unknown key, and nothing that follows
    from the slip alone."""
    path = tmp_path / "f.toml"
    path.touch(0o600)
    done = check(
        path,
        '[stall]\nafter_seconds = 5\nbusy = 3\n[cleanup]\nroots = ["/"]\n[log]\nlevel = "loud"\n'
        '[notify]\non = ["agent.ended"]\ncommand = ["/nowhere"]\n[daemon]\nstate_dir = "/dev/null/x"\n'
        '[[hook]]\ncommand = ["x"]\n[[hook]]\nname = "b"\nrun = "pane"\nneeds = ["a"]\n',
    )
    assert done.returncode == 78
    words = ("stall.busy: unknown", "log.level:", "hook[0].name: is missing", "stall.after_seconds: 5 is less")
    for word in (
        *words,
        "cleanup.roots: must",
        "warning: ",
        "notify.command: /nowhere",
        "daemon.state_dir: /dev/null/x",
    ):
        assert word in done.stderr, done.stderr
    assert "needs" not in done.stderr, "the hook that it names is there, but has a fault"
    done = check(path, '[stall]\nafter_seconds = 5\n[sweep]\ninterval_seconds = "x"\n')
    assert done.stderr.count("after_seconds") == 0, "by an interval that nobody gave"


def check(path: Path, text: str) -> subprocess.CompletedProcess[str]:
    """`--check` of a file with this text."""
    path.write_text(text)
    path.chmod(0o600)
    return subprocess.run([DAEMON, "--check", "--config", path], capture_output=True, text=True, timeout=30)


OPEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "the program": (lambda hook: hook.chmod(0o757), "{hook} has mode 0757 and owner uid {uid}"),
    "the program, by its group": (lambda hook: hook.chmod(0o775), "{hook} has mode 0775 and owner uid {uid}"),
    "its directory": (lambda hook: hook.parent.chmod(0o777), "{hook} lies below {hook.parent}, which has mode 0777"),
    "a directory above": (
        lambda hook: hook.parent.parent.chmod(0o777),
        "{hook} lies below {hook.parent.parent}, which has mode 0777",
    ),
}


@pytest.mark.faults
@pytest.mark.parametrize(("open_it", "says"), OPEN.values(), ids=OPEN)
@pytest.mark.parametrize("by", ["itself", "a link"])
def test_a_program_that_others_may_change_is_no_hook(
    tmp_path: Path, open_it: Callable[[Path], object], says: str, by: str
) -> None:
    """It runs as each agent's owner: who may write it has their hands. Through a link too; so for `[notify]`."""
    hook = tmp_path / "a" / "b" / "hook"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    (tmp_path / "link").symlink_to(hook)
    named = hook if by == "itself" else tmp_path / "link"
    text = f"""[[hook]]\nname = "x"\ncommand = ["{named}"]\n[notify]\non = ["agent.ended"]\ncommand = ["{named}"]\n"""
    path = tmp_path / "f.toml"
    assert check(path, text).returncode == 0

    open_it(hook)

    done = check(path, text)
    if "0775" in says and os.geteuid() != 0:
        assert done.returncode == 0, "a user's own group has nobody else in it"
        return
    words = says.format(hook=hook, uid=os.geteuid())
    assert done.returncode == 78
    assert f"{path}: hook 'x': command: {words}: others could change what runs; run chmod go-w" in done.stderr
    assert f"{path}: notify.command: {words}: " in done.stderr


def test_a_sticky_directory_lets_nobody_exchange_a_program(tmp_path: Path) -> None:
    """As /tmp: others may add files there, and rename none of ours."""
    hook = tmp_path / "open" / "hook"
    hook.parent.mkdir()
    hook.parent.chmod(0o1777)
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)

    done = check(tmp_path / "f.toml", f"""[[hook]]\nname = "x"\ncommand = ["{hook}"]\n""")

    assert (done.returncode, "could change" in done.stderr) == (0, False)


def test_a_root_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    """It may come later; but it may be a typing error too. The default ones need not be there."""
    path = tmp_path / "f.toml"

    done = check(path, f"""[cleanup]\nroots = ["/tmp", "{tmp_path}/tpm"]\n""")

    assert (done.returncode, done.stdout) == (0, f"{path}: fine\n")
    assert done.stderr == (
        f"agent-watchdogd: warning: {path}: cleanup.roots[1]: {tmp_path}/tpm is not a directory here;"
        " no temp dir can lie in it\n"
    )


def test_hooks_that_leave_the_shipped_ones_out_are_a_warning(tmp_path: Path) -> None:
    """Who adds one of his own loses the others by it. No hook at all is no slip."""
    path = tmp_path / "f.toml"
    mine = """[[hook]]\nname = "x"\ncommand = ["/bin/true"]\n"""

    done = check(path, mine + """[[hook]]\nname = "tree"\nrun = "worktree"\n""")

    assert (done.returncode, done.stdout) == (0, f"{path}: fine\n")
    others = {name: hook for name, hook in BUILT_IN.items() if name != "worktree"}
    names, left = ", ".join(others), ", ".join(hook.leaves for hook in others.values())
    assert re.sub(r"\bthe \w+ shipped", "the N shipped", done.stderr) == (
        f"agent-watchdogd: warning: {path}: hook: yours replace the N shipped ones; not among them: {names};"
        f" so these stay: {left}; list those that you want, too"
        """ ([[hook]], name = "pane", run = "pane")\n"""
    )
    assert check(path, "hook = []\n").stderr == ""


def test_a_built_in_hook_that_is_listed_is_as_shipped(tmp_path: Path) -> None:
    """Its two names are enough: listing `worktree` must not take the tree of an agent that was only stopped."""
    listed = "".join(f"""[[hook]]\nname = "{hook.run}"\nrun = "{hook.run}"\n""" for hook in DEFAULT_HOOKS)

    assert Config.model_validate(tomllib.loads(listed)).hook == DEFAULT_HOOKS
    said = Config.model_validate(tomllib.loads("""[[hook]]\nname = "x"\nrun = "worktree"\non = ["stopped"]\n""")).hook
    assert said is not None and said[0].on == (Status.STOPPED,)


def test_a_source_that_cannot_be_read_is_a_warning(tmp_path: Path) -> None:
    """Its program may make it later: nothing stops for it. A user that is none stops all."""
    path = tmp_path / "f.toml"
    source = """[[source]]\nkind = "hcom"\n"""

    done = check(path, f"""{source}path = "{tmp_path}"\n{source}path = "{tmp_path}/none"\n""")

    assert (done.returncode, done.stdout) == (0, f"{path}: fine\n")
    assert done.stderr == (
        f"agent-watchdogd: warning: {path}: source[1].path: {tmp_path}/none is not there (yet);"
        " no agent of hcom is known until it is\n"
    )
    none = check(path, f"""{source}user = "no-such-user-1"\n""")
    assert none.returncode == 78
    assert "source[0].user: 'no-such-user-1' is not a user of this machine; use one that" in none.stderr
    if os.geteuid():
        other = check(path, f"""{source}user = "root"\n""")
        assert "source[0].user: only root's daemon can read another user's files ('root');" in other.stderr


def test_a_directory_as_registry_is_told_before_a_start(tmp_path: Path) -> None:
    """It would end with 78 anyway."""
    path = tmp_path / "f.toml"

    done = check(path, f"""[registry]\nurl = "sqlite:///{tmp_path}"\n""")

    assert done.returncode == 78
    assert f"agent-watchdogd: {tmp_path}: is a directory, not a file; do: mv -T {tmp_path} " in done.stderr


def test_what_a_start_would_not_find_or_make_is_told_before_it() -> None:
    """A registry in a directory that is not there, one that lies below a file, a parameter that libpq does not know."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "f.toml")

        done = check(path, f"""[daemon]\nstate_dir = "{path}/s"\n[registry]\nurl = "sqlite:///{directory}/x/r.db"\n""")

        assert (done.returncode, done.stderr) == (
            78,
            f"agent-watchdogd: {path}: daemon.state_dir: {path}/s cannot be made: {path} is not a directory\n"
            f"agent-watchdogd: {path}: registry.url: there is no directory {directory}/x; use one that exists\n",
        )
        server = check(path, """[registry]\nurl = "postgresql://h/d?foo=1"\n""")
        assert server.returncode == 78
        assert server.stderr.startswith(f"agent-watchdogd: {path}: registry.url: ")
        if os.geteuid():
            other = check(path, """[daemon]\nstate_dir = "/usr/x/y"\n""")
            assert (
                f"daemon.state_dir: /usr/x/y cannot be made: uid {os.geteuid()} may not write to /usr\n" in other.stderr
            )


def test_lists_and_types_that_say_less_than_they_seem_to_are_warnings(tmp_path: Path) -> None:
    """Who spares a program of his own would have tmux's server ended; a policy for `Claude` fits nobody."""
    path = tmp_path / "f.toml"
    policy = """[[policy]]\nmatch = {{ type = "{}" }}\nspare = {}\n"""

    done = check(path, """[kill]\nspare = ["mine", "screen"]\n""" + policy.format("Claude", '["mine"]'))

    assert (done.returncode, done.stdout) == (0, f"{path}: fine\n")
    first, second, third = done.stderr.splitlines()
    assert f"{path}: kill.spare: yours replaces the shipped names; not among them: tmux: server, zellij, ssh-" in first
    assert f"{path}: policy[0].spare: yours replaces the shipped names; not among them: tmux: server, scr" in second
    assert third.endswith(f"{path}: policy[0].match.type: 'Claude' is not 'claude', as such agents are registered")
    assert check(path, "[kill]\nspare = []\n" + policy.format("mine", "[]")).stderr == ""


def test_a_file_that_is_not_there_is_named_whole(tmp_path: Path) -> None:
    """A relative name in $AGENT_WATCHDOG_CONFIG says nothing in a log."""
    environ = {**os.environ, "AGENT_WATCHDOG_CONFIG": "none.toml"}

    done = subprocess.run(
        [DAEMON, "--check"], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )

    told = f"agent-watchdogd: {tmp_path}/none.toml: no such file (named by $AGENT_WATCHDOG_CONFIG)\n"
    assert (done.returncode, done.stderr) == (78, told)


def test_a_grace_of_zero_kills_at_once(tmp_path: Path) -> None:
    """It has one meaning: no time between TERM and KILL. It never means "no KILL"."""
    path = tmp_path / "f.toml"
    path.write_text("[kill]\ngrace_seconds = 0\n")
    path.chmod(0o600)

    assert not load(str(path), environ={"HOME": "/h"}).policy_of("", "a", ()).grace
    assert "grace_seconds" in (Path(__file__).parents[1] / "config" / "agent-watchdog.toml").read_text()
