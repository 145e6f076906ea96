"""Everything that is wrong with a configuration file is told at once, whatever kinds of faults stand together in it.

O14: an unknown key hid what contradicts itself between two keys; so did a fault of syntax, the rights of the file, its
bytes, and what the unit asks of it.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from watchdog.config import salvage as module
from watchdog.config.salvage import line_of, salvage
from watchdog.config.schema import Config
from watchdog.config.settings import load
from watchdog.errors import ConfigError

DAEMON = Path(sys.executable).parent / "agent-watchdogd"
SHIPPED = Path(__file__).parents[2] / "config" / "agent-watchdog.toml"
CROSSED = "[sweep]\ninterval_seconds = 10\n[stall]\nafter_seconds = 3\n"
CROSS = "stall.after_seconds: 3 is less than two sweeps"


def problems(directory: Path, text: str | bytes, mode: int = 0o600) -> list[str]:
    """What is wrong with such a file, without its name."""
    path = directory / "f.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        load(str(path), environ={"HOME": str(directory)})
    assert all(one.startswith(f"{path}: ") for one in caught.value.problems)
    return [one.removeprefix(f"{path}: ") for one in caught.value.problems]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("[kill]\nfoo = 1\n", "kill.foo: unknown key"),
        ("[kill]\ngrace_seconds =\n", "not TOML: Invalid value (at line 6, column 16)"),
        ("[kill]\ngrace_seconds = 1 2\n", "not TOML: Expected newline"),
        ("[[kill]\ngrace_seconds = 1\n", "not TOML: line 5 is not a section header; use [kill]"),
        ("[kill\ngrace_seconds = 1\n", "not TOML: line 5 is not a section header; use [kill]"),
        (
            "[[hook]\nname = 'x'\ncommand = ['/bin/true']\n",
            "not TOML: line 5 is not a section header; use [[hook]]",
        ),
        (
            "[hook]]\nname = 'x'\ncommand = ['/bin/true']\n",
            "not TOML: line 5 is not a section header; use [[hook]]",
        ),
        ("[kill]\nspare = [\n 'a',\n", "not TOML: what begins at line 6 is never closed"),
        ("[kill]\nnudge_text = 'a\n", "not TOML: "),
        ('[kill]\nnudge_text = """\na\n', "not TOML: what begins at line 6 is never closed"),
        (
            "[kill]\ngrace_seconds = 1\n[kill]\nparallel = 2\n",
            "not TOML: [kill] is declared at lines 5 and 7; use one",
        ),
        (
            "[kill]\ngrace_seconds = 1\ngrace_seconds = 2\n",
            "not TOML: kill.grace_seconds is set at lines 6 and 7; keep",
        ),
        ("[kill]\nspare = [ # c\n 'a',\n]\nspare = []\n", "not TOML: kill.spare is set at lines 6 and 9; keep"),
        ("[[source]]\nkind = 'nosuch'\n", "source[0]: kind: 'nosuch'"),
        ("[[hook]]\nname =\n", "not TOML: Invalid value (at line 6, column 7)"),
        ("[[policy]]\nmatch = { type = 'x' }\nbar = 1\n", "policy[0].bar: unknown key"),
    ],
)
def test_no_fault_hides_what_contradicts_itself_elsewhere(tmp_path: Path, more: str, says: str) -> None:
    """Two complaints: the fault, and the one about two keys of other sections. No third about the same thing."""
    for text in (CROSSED + more, more + CROSSED):
        found = problems(tmp_path, text)
        assert [sum(CROSS in one for one in found), len(found)] == [1, 2], found
    (first,) = [one for one in problems(tmp_path, CROSSED + more) if CROSS not in one]
    assert first.startswith(says)


def test_an_unknown_key_of_an_entry_hides_nothing_of_its_list(tmp_path: Path) -> None:
    """Every complaint about any [[policy]] or [[hook]] was left out where one entry had a key too many."""
    policy = "[[policy]]\nmatch = { type = 'x' }\nafter_seconds = 3\nbar = 1\n"
    hook = "[[hook]]\nname = 'x'\ncommand = ['/bin/true']\nneeds = ['nosuch']\nbar = 1\n"
    found = problems(tmp_path, f"[sweep]\ninterval_seconds = 10\n{policy}{hook}")
    assert [one.partition(":")[0] for one in found] == [
        "hook[0].bar",
        "policy[0].bar",
        "policy[0].after_seconds",
        "hook[0].needs",
    ]


def test_every_fault_of_the_syntax_is_told_not_the_first_alone(tmp_path: Path) -> None:
    """In the order of the file, each with its line."""
    text = "[daemon]\nhost = x\nmode = y\n[stall]\nafter_seconds =\n[kill]\nfoo bar\nparallel = 'z'\n"
    lines = [one.rpartition("line ")[2].partition(",")[0] for one in problems(tmp_path, text) if "not TOML" in one]
    assert lines == ["2", "3", "5", "7"]
    assert problems(tmp_path, text)[-1].startswith("kill.parallel: 'z' is wrong")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("grace_seconds = 5s", "grace_seconds = 5s; use a number of seconds without a unit"),
        ("parallel = 5 % # c", "parallel = 5 %; use a number without a unit, or a text in quotes"),
        ("nudge_text = go on", 'nudge_text = go on; use a text needs quotes: nudge_text = "go on"'),
        ("foo = /a/b", 'foo = /a/b; use a text needs quotes: foo = "/a/b"'),
        ("foo = True", "foo = True; use foo = true"),
        ("url = postgresql://me:geheim@h/d", 'url = …; use a text needs quotes: url = "…"'),
        ("token = geheim", 'token = …; use a text needs quotes: token = "…"'),
    ],
)
def test_a_value_without_quotes_is_shown_with_what_is_right(tmp_path: Path, line: str, says: str) -> None:
    """B3: "Expected newline or end of document after a statement" said nothing to whoever wrote `5s`."""
    found = next(one for one in problems(tmp_path, f"[kill]\n{line}\n") if "not TOML" in one)
    assert found.startswith(f"not TOML: {says} (at line 2, column ")
    assert "geheim" not in found


def test_a_fault_of_a_key_has_its_line(tmp_path: Path) -> None:
    """Of a section, of an entry of a list, of a table in it, dotted, in quotes, and of what contradicts another key."""
    text = (
        "sweep.interval_seconds = 10\nkil = 1\n[stall] # c\n'after_secconds' = 3\nafter_seconds = 3\n"
        "[[policy]]\nmatch = { type = 'x' }\n[[policy]]\nafter_seconds = 40\nbar = 1\n[policy.match]\ntyp = 'y'\n"
    )
    found = problems(tmp_path, text)
    lines = {one.partition(":")[0]: one.rpartition("(at line ")[2] for one in found}
    assert lines == {
        "kil": "2)",
        "stall.after_secconds": "4)",
        "stall.after_seconds": "5)",
        "policy[1].bar": "10)",
        "policy[1].match.typ": "12)",
    }
    assert line_of("[kill]\n", "kill.foo") is None  # the header alone says too little
    assert line_of("a = '''\n[kill]\nfoo = 1\n'''\n", "kill.foo") is None  # a text, no key


def test_a_file_that_others_may_write_is_read_for_its_other_faults(tmp_path: Path) -> None:
    """Refused as before; and what else a person has to correct."""
    first, *rest = problems(tmp_path, CROSSED + "[kill]\nfoo = 1\n", mode=0o666)
    assert "others could change what the daemon runs" in first
    assert len(rest) == 2
    assert len(problems(tmp_path, "[kill]\ngrace_seconds = 1\n", mode=0o666)) == 1


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (b"\xef\xbb\xbf" + CROSSED.encode(), ["begins with a byte order mark"]),
        (CROSSED.encode() + b"# \xe4\n", ["not UTF-8 (byte 58)"]),
        (b"\xef\xbb\xbf" + CROSSED.encode() + b"# \xe4\n", ["begins with a byte order mark", "not UTF-8 (byte 61)"]),
    ],
)
def test_wrong_bytes_hide_nothing(tmp_path: Path, text: bytes, faults: list[str]) -> None:
    """A comment in Latin-1 is the usual case."""
    found = problems(tmp_path, text)
    assert len(found) == len(faults) + 1
    assert all(one.startswith(fault) for one, fault in zip(found, [*faults, CROSS], strict=True))


def test_what_the_unit_asks_is_told_with_the_rest(tmp_path: Path) -> None:
    """WatchdogSec= of the environment, what the file leads to, and its own faults: one `--check`."""
    path = tmp_path / "f.toml"
    path.write_text(CROSSED + "[registry]\nurl = 'sqlite:////nowhere/x.db'\n[kill]\nfoo = 1\nx =\n")
    environ = {**os.environ, "WATCHDOG_USEC": "5000000", "HOME": str(tmp_path)}
    environ.pop("WATCHDOG_PID", None)
    done = subprocess.run(
        [DAEMON, "--config", path, "--check"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 78
    for words in ("not TOML", "kill.foo", CROSS, "there is no directory /nowhere", "WatchdogSec=5 in the unit"):
        assert done.stderr.count(words) == 1, (words, done.stderr)


def test_what_is_left_of_a_source_with_a_fault_is_not_looked_at(tmp_path: Path) -> None:
    """Without its path it reads another place, of which a warning would speak."""
    path = tmp_path / "f.toml"
    path.write_text("[[source]]\nkind = 'hcom'\npath = 'relative'\n")
    environ = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [DAEMON, "--config", path, "--check"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.splitlines() == [
        f"agent-watchdogd: {path}: source[0].path: 'relative' must be an absolute path (at line 3)"
    ]


def test_the_shipped_file_loses_one_line_alone() -> None:
    """Each line of it spoilt in turn: what is left is the rest of the file, and nothing of it is called wrong."""
    lines = SHIPPED.read_text().split("\n")
    keys = [number for number, line in enumerate(lines) if line.startswith("#") and " = " in line][::7]
    for number in keys:
        spoilt = "\n".join([*lines[:number], "spoilt spoilt", *lines[number + 1 :]])
        with pytest.raises(tomllib.TOMLDecodeError):
            tomllib.loads(spoilt)
        found = salvage(spoilt, "first", {})
        assert len(found.faults) == 1
        assert f"at line {number + 1}," in found.faults[0]
        assert Config.model_validate(found.data) == Config()


def test_what_cannot_be_cut_keeps_the_first_fault() -> None:
    """A large file is not looked at so closely, and a file of faults alone ends at some time."""
    large = "x = \n" + "#" * module.LARGEST
    assert salvage(large, "first", {}).faults == ["first"]
    assert len(salvage("[kill]\n" + "x y\n" * 1000, "first", {}).faults) <= module.MOST
    assert salvage("a.b = 1\n[a]\nc = 1\n", "first", {}).faults == ["first"], "only the whole has that one"
