"""Which conversation a process is in, and moving one conversation's files away, and no others'."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_claude_sessions import session
from tests.world import started_at, wait_for
from watchdog.core.conversations import Conversation, conversation_json, conversation_of, kept_in
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner.conversations import conversation
from watchdog.owner.purge import purge

ID = str(uuid.uuid4())  # each process that runs tests has its own: who carries one keeps it from being purged
Started = list["subprocess.Popen[str]"]
OTHER = ID[:-12] + "6" * 12
HOLD = "import sys, time; f = open(sys.argv[1], 'a'); print('open', flush=True); sys.stdin.read()"


@pytest.fixture
def started() -> Iterator[list["subprocess.Popen[str]"]]:
    """Ended at the end."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def holds(file: Path, started: Started, **environ: str) -> "subprocess.Popen[str]":
    """A process that has the file open, where it lies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=file.parent,
        env={**os.environ, **environ},
    )
    started.append(process)
    assert process.stdout is not None and process.stdout.readline() == "open\n"
    return process


def layouts(home: Path) -> dict[str, tuple[Path, Path, list[str]]]:
    """By program: its directory, the file that it keeps open, and all files of both conversations."""
    claude, codex, agy = home / ".claude", home / ".codex", home / ".gemini/antigravity-cli"
    day = "sessions/2030/01/02/rollout-2030-01-02T03-04-05-"
    return {
        "claude": (claude, claude / f"projects/-srv-app/{ID}.jsonl", [f"projects/-srv-app/{ID}/subagents/a.jsonl"]),
        "codex": (codex, codex / f"{day}{ID}.jsonl", []),
        "agy": (agy, agy / f"conversations/{ID}.db", [f"conversations/{ID}.db-wal", f"brain/{ID}/task.md"]),
    }


def files_in(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def fill(home: Path, vendor: str) -> tuple[Path, Path]:
    """Files of that conversation and, by the same names, of another one; the program's directory and its main file."""
    base, main, more = layouts(home)[vendor]
    for path in (main, *(base / name for name in more)):
        for one in (path, Path(str(path).replace(ID, OTHER))):
            one.parent.mkdir(parents=True, exist_ok=True)
            one.write_text(str(one))
    return base, main


@pytest.mark.parametrize("vendor", ["codex", "agy"])
def test_an_open_file_names_the_conversation(tmp_path: Path, started: Started, vendor: str) -> None:
    """Of the very process that was named: a number that passed on tells nothing."""
    base, main, _ = layouts(tmp_path)[vendor]
    process = holds(main, started)
    ticks = int(started_at(process.pid) or 0)
    told = conversation_of(conversation([[os.getpid(), 1], [process.pid, ticks]]))
    assert told == Conversation(vendor, ID, str(base), str(main.parent))
    assert told.resume.startswith(f"cd {main.parent} && ") and told.resume.endswith(ID)
    assert conversation([[process.pid, ticks + 1]]) is None
    assert conversation([[4_000_000, 1]]) is None


def test_claude_codes_own_list_names_it(tmp_path: Path, started: Started) -> None:
    """By pid and start; the list of the directory that the process itself uses."""
    process = holds(tmp_path / "any", started, CLAUDE_CONFIG_DIR=str(tmp_path / "own"))
    ticks = int(started_at(process.pid) or 0)
    session(tmp_path / "own", process.pid, sessionId=ID, cwd="/srv/it's mine")
    told = conversation_of(conversation([[process.pid, ticks]]))
    assert told == Conversation("claude", ID, str(tmp_path / "own"), "/srv/it's mine")
    assert told.resume == f"""cd '/srv/it'"'"'s mine' && claude --resume {ID}"""
    session(tmp_path / "own", process.pid, sessionId=ID, procStart="7")
    assert conversation([[process.pid, ticks]]) is None


@pytest.mark.parametrize("name", ["/a/{}.jsonl", "/a/projects/b/{}.jsonl.bak", "/a/projects/b/{}0.jsonl", "relative"])
def test_only_a_whole_known_path_names_one(name: str) -> None:
    """A transcript elsewhere, or of another name, says nothing; so does what is no conversation."""
    assert kept_in(name.format(ID)) is kept_in(None) is None
    assert conversation_of({"vendor": "claude", "id": "../../etc"}) is None
    assert conversation_of({"vendor": "cat", "id": ID}) is None


def purged(told: dict[str, object], *, dry_run: bool) -> dict[str, object]:
    """As `purge`; the Claude Code of a test beside this one, which does not say its session, is waited for."""

    def tried() -> dict[str, object] | None:
        try:
            return purge(told, dry_run)
        except OwnerCallFailed as error:
            if "does not say which session" not in str(error):
                raise
            return None

    return wait_for(tried, "no other Claude Code runs")


@pytest.mark.parametrize("vendor", ["claude", "codex", "agy"])
def test_a_purge_moves_that_conversation_alone(tmp_path: Path, vendor: str) -> None:
    """Shown first; then one rename each, nothing is lost, and the other conversation stays. A second finds nothing."""
    base, main = fill(tmp_path, vendor)
    told, before = conversation_json(Conversation(vendor, ID, str(base))), files_in(base)
    shown = purged(told, dry_run=True)
    assert files_in(base) == before and str(main) in shown["paths"]  # type: ignore[operator]

    done = purged(told, dry_run=False)
    assert done["paths"] == shown["paths"]
    trash = Path(str(done["trash"]))
    kept = [path for path in trash.rglob("*") if path.is_file() and path.name != "origin.json"]
    stay = [name for name in before if ID not in name]
    assert [name for name in files_in(base) if not name.startswith(".agent-watchdog-trash")] == stay
    assert sorted(path.read_text() for path in kept) == sorted(str(base / name) for name in before if ID in name)
    assert trash.parent.stat().st_mode & 0o077 == 0
    assert purged(told, dry_run=False)["paths"] == []


def test_a_conversation_in_use_stays(tmp_path: Path, started: Started) -> None:
    """Whoever has its file open, or carries its id, is in it."""
    base, main = fill(tmp_path, "codex")
    told = conversation_json(Conversation("codex", ID, str(base)))
    name = tmp_path / "name"
    name.symlink_to(main)
    open_ = holds(name, started)
    with pytest.raises(OwnerCallFailed, match=f"process {open_.pid}"):
        purge(told, dry_run=False)
    open_.kill()
    open_.wait()
    holds(tmp_path / "any", started, CODEX_THREAD_ID=ID)
    with pytest.raises(OwnerCallFailed, match="a process is in conversation"):
        purge(told, dry_run=True)
    assert main.exists()


def test_who_stands_in_claude_codes_list_is_in_it_whatever_its_program_is_called(
    tmp_path: Path, started: Started
) -> None:
    """By pid and start; an entry that a crash left behind keeps nothing."""
    base, main = fill(tmp_path, "claude")
    told = conversation_json(Conversation("claude", ID, str(base)))
    process = holds(tmp_path / "any", started)
    session(base, process.pid, sessionId=ID)
    with pytest.raises(OwnerCallFailed, match=f"process {process.pid} is in conversation"):
        purge(told, dry_run=True)
    assert main.exists()
    session(base, process.pid, sessionId=ID, procStart="7")
    assert str(main) in purged(told, dry_run=False)["paths"]  # type: ignore[operator]


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_may_not_be_moved_keeps_all_of_it_in_its_place(tmp_path: Path, dry_run: bool) -> None:
    """Else one part would be in the trash, and the answer that nothing was removed. A dry run says the same."""
    base, _ = fill(tmp_path, "claude")
    strange = base / f"projects/-zzz/{ID}.jsonl"
    strange.parent.mkdir()
    strange.symlink_to("/etc/hostname")
    before = files_in(base)
    with pytest.raises(PathRefused, match="neither a file nor a directory"):
        purged(conversation_json(Conversation("claude", ID, str(base))), dry_run=dry_run)
    assert files_in(base) == before
    assert not list(base.glob(".agent-watchdog-trash-*"))


def test_a_link_on_the_way_is_not_followed(tmp_path: Path) -> None:
    """A linked directory may be anybody's; a linked file is not a file of that conversation."""
    base, main = fill(tmp_path, "codex")
    (tmp_path / "real").mkdir()
    main.rename(tmp_path / "real" / main.name)
    main.symlink_to(tmp_path / "real" / main.name)
    told = conversation_json(Conversation("codex", ID, str(base)))
    with pytest.raises(Exception, match="neither a file nor a directory"):
        purge(told, dry_run=False)
    assert (tmp_path / "real" / main.name).exists()
