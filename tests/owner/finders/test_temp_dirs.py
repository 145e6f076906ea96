"""Cases G1 and G5 on real directories and processes: what dead agents and sessions left goes, all else stays."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.owner.repositories import Repository, context, git
from tests.world import wait_for
from watchdog.core import hooks
from watchdog.core.findings import Finding, KnownAgents
from watchdog.core.hooks import HookOutcome
from watchdog.owner import session_dirs, temp_dirs
from watchdog.owner.finders import finders
from watchdog.owner.git import lock_files
from watchdog.owner.hooks.temp_dir import temp_dir

AGENT, OTHER = "a" * 32, "b" * 32
HOUR = 3600.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory that `cleanup.roots` names."""
    place = tmp_path / "root"
    place.mkdir()
    return place


@pytest.fixture(autouse=True)
def _only_our_own_claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever else runs one on this machine, another test among them, would keep all that these tests look at."""
    real, ours = session_dirs._runs_claude, str(tmp_path).encode()
    monkeypatch.setattr(session_dirs, "_runs_claude", lambda pid, words: ours in words and real(pid, words))


def settings(root: Path, hours: float = 0.0) -> hooks.CleanupSettings:
    return hooks.CleanupSettings(roots=(str(root),), trash_retention_hours=hours)


def found(root: Path, known: KnownAgents, hours: float = 0.0) -> dict[str, Finding]:
    return {one.path: one for kind in finders.FINDERS for one in finders.look(kind, settings(root, hours), known)}


def session_of(root: Path, session: str | None = None) -> Path:
    path = root / f"claude-{os.geteuid()}" / "-home-me-proj" / (session or str(uuid.uuid4()))
    (path / "tasks").mkdir(parents=True)
    (path / "tasks" / "b1.output").write_text("output")
    return path


@contextmanager
def process(environment: dict[str, str], *argv: str) -> Iterator[int]:
    """One that lives, with these variables in its environment."""
    command = argv or (sys.executable, "-c", "print(flush=True); input()")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=os.environ | environment, stdin=pipe, stdout=pipe) as somebody:
        assert somebody.stdout is not None
        somebody.stdout.readline()
        yield somebody.pid
        somebody.communicate(b"\n")


def test_temp_dirs_of_dead_sessions_go_and_those_of_living_ones_stay(root: Path) -> None:
    """Two live by a process that carries the session's id, in its environment or its arguments."""
    dead = [session_of(root) for _ in range(5)]
    living, resumed = session_of(root), session_of(root)
    call = (sys.executable, "-c", "print(flush=True); input()", "--resume", resumed.name)
    with process({"CLAUDE_CODE_SESSION_ID": living.name}), process({}, *call):
        findings = found(root, KnownAgents())
        assert set(findings) == {str(path) for path in dead}
        assert {finding.action for finding in findings.values()} == {"remove"}
        results = [finders.act(finding, settings(root), KnownAgents()) for finding in findings.values()]
        refused = finders.act(Finding("temp_dir", str(living), None, "told", "remove"), settings(root), KnownAgents())

    assert {result.outcome for result in results} == {HookOutcome.DONE}
    assert all(int(str(result.details["inodes"])) == 3 for result in results)
    assert refused.outcome is HookOutcome.KEPT
    assert sorted(path.name for path in living.parent.iterdir()) == sorted([living.name, resumed.name])
    assert set(found(root, KnownAgents())) == {str(living), str(resumed)}


def test_retention_counts_from_the_last_change_of_anything_in_it(root: Path) -> None:
    """The directory itself may be old while its files are written."""
    path = session_of(root)
    assert found(root, KnownAgents(), hours=1) == {}
    finding = Finding("temp_dir", str(path), None, "old", "remove")
    assert finders.act(finding, settings(root, 1), KnownAgents()).outcome is HookOutcome.KEPT

    what = temp_dirs.TempDir(str(path), path.name, unchanged_for=HOUR)
    assert temp_dirs.remove(what, settings(root)).details["refused"] == "young"
    assert path.is_dir()


def test_a_look_makes_no_closed_directory_younger(root: Path) -> None:
    """To open it up and close it again changes its ctime: it was kept as young, for one retention after the other."""
    path = session_of(root)
    closed = path / "tasks" / "closed"
    (closed / "inner").mkdir(parents=True)
    closed.chmod(0)
    before = closed.stat().st_ctime_ns

    (finding,) = found(root, KnownAgents()).values()

    assert (closed.stat().st_ctime_ns, finding.action) == (before, "remove")
    assert finders.act(finding, settings(root), KnownAgents()).outcome is HookOutcome.DONE
    assert not path.exists()


def test_a_claude_that_does_not_say_its_session_keeps_them_all(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main process carries no id: its own list says which session it is, or nobody can tell."""
    path, mine = session_of(root), session_of(root)
    program = tmp_path / "node_modules" / "claude"
    program.parent.mkdir()
    program.symlink_to(sys.executable)
    config = tmp_path / "config"
    (config / "sessions").mkdir(parents=True)
    environment = {"CLAUDE_CONFIG_DIR": str(config)}
    with process(environment, str(program), "-c", "print(flush=True); input()") as pid:
        findings = found(root, KnownAgents())
        assert [finding.action for finding in findings.values()] == ["keep"]
        assert f"process {pid} is a Claude Code" in next(iter(findings.values())).why

        (config / "sessions" / f"{pid}.json").write_text(json.dumps({"pid": pid, "sessionId": mine.name}))
        assert set(found(root, KnownAgents())) == {str(path)}


def test_a_look_says_what_an_act_would_keep(root: Path) -> None:
    """A repository inside, a process that uses it: told with the rule, not tried each time."""
    used, cloned = root / "used", root / "cloned"
    used.mkdir()
    (cloned / "x" / ".git").mkdir(parents=True)
    known = KnownAgents(ended={AGENT: 1.0, OTHER: 1.0}, temp_dirs={AGENT: str(used), OTHER: str(cloned)})
    code = f"import os; os.chdir({str(used)!r}); print(flush=True); input()"
    with process({}, sys.executable, "-c", code):
        findings = found(root, known)
        assert {path: finding.action for path, finding in findings.items()} == {str(used): "keep", str(cloned): "keep"}
        assert "has its cwd" in findings[str(used)].why
        assert "a repository lies in" in findings[str(cloned)].why
    assert found(root, known)[str(used)].action == "remove"


def test_nothing_is_taken_by_the_beginning_of_its_name(root: Path) -> None:
    """Case G5; nor a link, nor another layout."""
    uid = os.geteuid()
    for name in (f"claude-{uid}-backup", "claude-notes", f"claude-{uid + 1}", "claude", f"xclaude-{uid}"):
        (root / name / "proj" / str(uuid.uuid4())).mkdir(parents=True)
    top = root / f"claude-{uid}"
    for name in ("proj/notes", f"proj/{uuid.uuid4()}-old", "proj/1234", f"{uuid.uuid4()}"):
        (top / name).mkdir(parents=True)
    (root / "elsewhere" / str(uuid.uuid4())).mkdir(parents=True)
    (top / "link").symlink_to(root / "elsewhere")
    (root / "agent-watchdog-alpha-1234").mkdir()
    before = sorted(root.rglob("*"))

    assert found(root, KnownAgents(ended={AGENT: 1e6})) == {}
    assert sorted(root.rglob("*")) == before


def test_what_an_ended_agent_had_goes_after_retention(root: Path) -> None:
    """By its recorded path, or by our mark with its id; a living agent's and an unknown one's stay."""
    registered, marked, others, unknown, young = (
        root / name for name in ("reg", "marked", "others", "unknown", "young")
    )
    for path, mark in ((registered, None), (marked, AGENT), (others, OTHER), (unknown, "c" * 32), (young, "d" * 32)):
        path.mkdir()
        if mark:
            (path / temp_dirs.MARK).write_text(mark + "\n")
    ages = {AGENT: 2 * HOUR, OTHER: 2 * HOUR, "d" * 32: 0.1}
    known = KnownAgents(frozenset({OTHER}), ages, {AGENT: str(registered)})
    assert found(root, known, hours=1.0) == {}  # changed a moment ago

    moment = 0.5 / HOUR
    wait_for(lambda: found(root, known, moment).keys() == {str(registered), str(marked)}, "they are old enough")
    for finding in found(root, known, moment).values():
        assert finders.act(finding, settings(root, moment), known).outcome is HookOutcome.DONE
    assert sorted(path.name for path in root.iterdir()) == ["others", "unknown", "young"]


def test_a_large_one_goes_in_rounds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook moves it away and does the first; the finder goes on with what is left, also after a crash."""
    monkeypatch.setattr(temp_dirs, "ROUND", 400)
    monkeypatch.setattr(temp_dirs, "SECONDS", 0.0)
    path = root / "deep" / "work"
    for number in range(10):
        (path / f"{number}").mkdir(parents=True)
        for name in range(100):
            (path / f"{number}" / f"{name}").touch()

    first = temp_dir(context(temp_dir=str(path), agent_id=AGENT), settings(root))

    assert (first.outcome, first.details["more"]) == (HookOutcome.DONE, True)
    assert not path.exists()
    inodes = [int(str(first.details["inodes"]))]
    known = KnownAgents(ended={AGENT: 1.0}, temp_dirs={AGENT: str(path)})
    while findings := found(root, known, hours=72):
        (finding,) = findings.values()
        assert (finding.action, finding.agent_id) == ("remove", AGENT)
        inodes.append(int(str(finders.act(finding, settings(root, 72), known).details["inodes"])))
    assert len(inodes) == 3
    assert sum(inodes) == 1000 + 10 + 1
    assert list((root / "deep").iterdir()) == []


def test_a_lock_that_was_young_is_found_later(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the last end of those who had that checkout; of a repository alone, what all its worktrees share."""
    monkeypatch.setattr(lock_files, "APART", 0.0)
    monkeypatch.setattr(lock_files, "MIN_AGE", 0.0)
    index, packed = repository.main / ".git" / "index.lock", repository.main / ".git" / "packed-refs.lock"
    index.touch()
    packed.touch()
    here = {AGENT: str(repository.main), OTHER: str(repository.main)}
    late, known = (
        KnownAgents(ended={AGENT: 100.0, OTHER: 50.0}, worktrees=here),
        KnownAgents(ended={AGENT: 0.0}, worktrees=here),
    )
    assert found(repository.place, late) == {}  # written since: somebody else's

    common = KnownAgents(ended={AGENT: 0.0}, commons=(str(repository.main / ".git"),))
    (finding,) = found(repository.place, common).values()
    assert "packed-refs.lock" in finding.why and "index.lock" not in finding.why

    (finding,) = found(repository.place, known).values()
    result = finders.act(finding, settings(repository.place), known)
    assert result.outcome is HookOutcome.DONE, result.message
    assert (index.exists(), packed.exists()) == (False, False)
    assert found(repository.place, known) == {}

    git(repository.main, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(repository.origin), "sub")
    (repository.main / ".git" / "modules" / "sub" / "index.lock").touch()
    (finding,) = found(repository.place, known).values()
    assert finding.path == str(repository.main / "sub")
    assert finders.act(finding, settings(repository.place), known).outcome is HookOutcome.DONE
    assert session_dirs.slugs(str(repository.place)) == []
