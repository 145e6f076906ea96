"""The catalogue, the two forms, and that logging harms nobody."""

import contextlib
import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO, TextIOWrapper
from pathlib import Path

import pytest

from watchdog.catalogue import CATALOGUE, WARNING
from watchdog.logs import Log, Sink, get_logger, set_up

Begin = Callable[..., Sink]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """`set_up`, undone after the test."""
    sinks: list[Sink] = []
    level = logging.getLogger().level

    def start(*args: str, **kwargs: object) -> Sink:
        sinks.append(set_up(*args, **kwargs))  # type: ignore[arg-type]
        return sinks[-1]

    yield start
    for sink in sinks:
        sink.finish()
    logging.getLogger().setLevel(level)


def lines(out: StringIO) -> list[dict[str, object]]:
    """The JSON lines that were written."""
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_names_are_dotted_and_every_text_is_one_line() -> None:
    """The catalogue is copied into the README as a table."""
    for name, entry in CATALOGUE.items():
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", name)
        assert entry.text
        assert "\n" not in entry.text
        assert "|" not in entry.text


def test_an_event_that_is_not_listed_is_found_in_tests() -> None:
    """An unlisted name would be a promise to nobody."""
    with pytest.raises(ValueError, match=r"agent\.stalld"):
        get_logger().event("agent.stalld")


def test_a_running_daemon_logs_an_unlisted_event_as_it_is(begin: Begin) -> None:
    """A typing error must not end a kill half-way."""
    out = StringIO()
    sink = begin(stream=out)
    get_logger().event("agent.stalld", agent_id="a1")
    sink.finish()
    assert lines(out)[0]["event"] == "agent.stalld"


def test_every_event_named_in_the_source_is_listed() -> None:
    """`.event("x.y"` anywhere in the package."""
    package = Path(__file__).parent.parent / "watchdog"
    named = {
        name
        for path in package.rglob("*.py")
        for name in re.findall(r"\.event\(\s*\"([a-z_.]+)\"", path.read_text(encoding="utf-8"))
    }
    assert named <= CATALOGUE.keys()


def test_a_line_is_json_with_the_event_first(begin: Begin) -> None:
    """Bound fields, durations in seconds, UTC time under `ts`."""
    out = StringIO()
    sink = begin("info", "json", stream=out)
    log = get_logger(host="h1").bind(agent_id="a1")
    log.event("agent.late", silence=timedelta(seconds=90.5), at=datetime(2026, 1, 1, tzinfo=UTC), tags={"b", "a"})
    log.event("sweep.finished")  # debug
    sink.finish()
    (line,) = lines(out)
    assert list(line)[:3] == ["event", "ts", "level"]
    assert str(line.pop("ts")).endswith("Z")
    assert line == {
        "event": "agent.late",
        "level": "warning",
        "host": "h1",
        "agent_id": "a1",
        "silence": 90.5,
        "at": "2026-01-01T00:00:00+00:00",
        "tags": ["a", "b"],
    }


def test_a_library_comes_in_the_same_form(begin: Begin) -> None:
    """APScheduler, SQLAlchemy, warnings: one event, their text in a field, tracebacks with them; no INFO of theirs."""
    out = StringIO()
    sink = begin("debug", "json", stream=out)
    logging.getLogger("apscheduler.executors.default").info("Running job")
    try:
        raise OSError("no space")
    except OSError:
        logging.getLogger("apscheduler.executors.default").exception("Job %s raised", "sweep")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", UserWarning, stacklevel=1)
    sink.finish()
    first, second = lines(out)
    assert (first["event"], first["message"], first["level"]) == ("log.message", "Job sweep raised", "error")
    assert first["logger"] == "apscheduler.executors.default"
    assert "OSError: no space" in str(first["exception"])
    assert (second["event"], second["logger"]) == ("log.message", "py.warnings")


def test_environments_and_command_lines_are_dropped(begin: Begin) -> None:
    """They hold keys and passwords; nobody may log one by accident."""
    out = StringIO()
    sink = begin("info", "json", stream=out)
    get_logger(cmdline="x --password y").event("agent.gone", environ={"TOKEN": "secret"}, argv=["x"], comm="sh")
    sink.finish()
    assert "secret" not in out.getvalue()
    assert "password" not in out.getvalue()
    assert lines(out)[0]["comm"] == "sh"


def test_fields_cannot_take_the_place_of_event_and_level(begin: Begin) -> None:
    """An agent's own words may be in any field."""
    out = StringIO()
    sink = begin("info", "json", stream=out)
    get_logger().event("agent.gone", event="x", level="y", ts="z", name="alpha", odd=object)
    sink.finish()
    line = lines(out)[0]
    assert (line["event"], line["event_"], line["level_"], line["name"]) == ("agent.gone", "x", "y", "alpha")


def test_the_journal_gets_a_priority_before_each_line(begin: Begin, tmp_path: Path) -> None:
    """Only when it is really the journal that reads this very stream."""
    for matches, pattern in ((True, r'<4>\{"event": "agent.late"'), (False, r'\{"event": "agent.late"')):
        path = tmp_path / str(matches)
        with path.open("w", encoding="utf-8") as stream:
            found = os.fstat(stream.fileno())
            own = f"{found.st_dev}:{found.st_ino + (not matches)}"
            sink = begin("info", "json", stream=stream, environ={"JOURNAL_STREAM": own})
            get_logger().event("agent.late")
            sink.finish()
        assert re.match(pattern, path.read_text())


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_readable_lines(begin: Begin, environ: dict[str, str], coloured: bool) -> None:
    """In colour, unless NO_COLOR."""
    reader, writer = pty.openpty()
    with TextIOWrapper(os.fdopen(writer, "wb", buffering=0), write_through=True) as stream:
        sink = begin(stream=stream, environ=environ)
        get_logger().event("agent.late", agent_id="a1", note="\x1b]0;evil\n")
        sink.finish()
        text = os.read(reader, 4096).decode()
    os.close(reader)
    assert ("\x1b[" in text) is coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert re.search(r"\[warning *\] agent\.late +agent_id=a1", plain)
    assert "\x1b]" not in text


def test_a_renamed_file_is_opened_anew(begin: Begin, tmp_path: Path) -> None:
    """As logrotate does it; no signal, no line lost; not readable by others."""
    path = tmp_path / "log"
    sink = begin("info", "auto", str(path))
    log = get_logger()
    log.event("agent.late", n=1)
    wait_for(lambda: path.exists() and path.read_text().count("\n") == 1)
    path.rename(tmp_path / "log.1")
    log.event("agent.late", n=2)
    sink.finish()
    assert json.loads((tmp_path / "log.1").read_text())["n"] == 1
    assert json.loads(path.read_text())["n"] == 2
    assert path.stat().st_mode & 0o137 == 0


def test_a_file_that_cannot_be_written_falls_back_to_stderr_and_recovers(begin: Begin, tmp_path: Path) -> None:
    """Nothing is raised into the caller; when the directory is there, the file is used."""
    out = StringIO()
    path = tmp_path / "missing" / "log"
    sink = begin("info", "auto", str(path), stream=out)
    log = get_logger()
    log.event("agent.late", n=1)
    wait_for(lambda: '"n": 1' in out.getvalue())
    path.parent.mkdir()
    log.event("agent.late", n=2)
    sink.finish()
    assert json.loads(path.read_text())["n"] == 2
    assert sink.lost == 0


def test_a_broken_target_is_counted_and_raises_nothing(begin: Begin) -> None:
    """A closed pipe, a full disk, an object that cannot be printed."""

    class Broken(StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    sink = begin("info", "json", stream=Broken())
    get_logger().event("agent.late")
    get_logger().event("agent.late", value=Unprintable())
    sink.finish()
    assert sink.lost == 2


def test_a_reader_that_stopped_reading_stops_nobody(begin: Begin) -> None:
    """stderr is a full pipe: 20 000 lines are queued or counted at once, and the end waits for 0.1 s only."""
    reader, writer = os.pipe()
    with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w") as stream:
        sink = begin("info", "json", stream=stream)
        log = get_logger()
        done = threading.Event()

        def talk() -> None:
            for _ in range(20_000):
                log.event("agent.late", text="x" * 100)
            done.set()

        thread = threading.Thread(target=talk)
        thread.start()
        assert done.wait(60)
        thread.join()
        sink.finish(0.1)
        assert sink.lost > 5_000
        os.close(reader)  # the writing thread gets EPIPE, and ends


def test_the_process_ends_although_nobody_reads_its_log() -> None:
    """The writing thread must not keep the interpreter alive."""
    script = (
        "from watchdog.logs import *\n"
        "sink = set_up('info', 'json'); log = get_logger()\n"
        "[log.event('agent.late', text='x' * 200) for _ in range(2000)]\n"
        "sink.finish(0.1); import os; os._exit(7)\n"
    )
    reader, writer = os.pipe()
    done = subprocess.run([sys.executable, "-c", script], stderr=writer, timeout=60, check=False)
    os.close(reader)
    os.close(writer)
    assert done.returncode == 7


def test_levels_are_those_of_the_catalogue(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    """A caller cannot choose another one."""
    out = StringIO()
    sink = begin("warning", "json", stream=out)
    for name in CATALOGUE:
        get_logger().event(name)
    sink.finish()
    assert [line["event"] for line in lines(out)] == [n for n, entry in CATALOGUE.items() if entry.level >= WARNING]
    assert Log.strict


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for what a thread does, with a deadline."""
    deadline = threading.Event()
    timer = threading.Timer(seconds, deadline.set)
    timer.start()
    try:
        while not condition():
            assert not deadline.wait(0.005), "it did not happen in time"
    finally:
        timer.cancel()
        timer.join()
