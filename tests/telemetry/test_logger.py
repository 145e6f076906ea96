"""The catalogue, the two forms, and that logging does no harm."""

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
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

import pytest

from watchdog.telemetry.catalogue import CATALOGUE, WARNING
from watchdog.telemetry.logger import LONGEST, EventLogger, change, finish, get_logger, set_up
from watchdog.telemetry.queue_handler import QueueHandler

Begin = Callable[..., QueueHandler]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """`set_up`, undone after the test."""
    sinks: list[QueueHandler] = []
    level = logging.getLogger().level

    def start(*args: str, **kwargs: object) -> QueueHandler:
        sinks.append(set_up(*args, **kwargs))  # type: ignore[arg-type]
        return sinks[-1]

    yield start
    for sink in sinks:
        finish(sink)
    logging.getLogger().setLevel(level)


@pytest.fixture
def out(tmp_path: Path) -> Iterator[TextIO]:
    """A file in place of stderr."""
    with (tmp_path / "stderr").open("w+", encoding="utf-8") as stream:
        yield stream


def lines(out: TextIO) -> list[dict[str, object]]:
    """The JSON lines that were written."""
    return [json.loads(line) for line in text(out).splitlines()]


def text(out: TextIO) -> str:
    """The text that was written."""
    return Path(out.name).read_text(encoding="utf-8")


def test_names_are_dotted_and_every_text_is_one_line() -> None:
    """The catalogue is copied into config/doc/events.md as a table."""
    for name, entry in CATALOGUE.items():
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", name)
        assert entry.text
        assert "\n" not in entry.text
        assert "|" not in entry.text


def test_an_unlisted_event_fails_in_tests() -> None:
    """An unlisted name would be undocumented."""
    with pytest.raises(ValueError, match=r"agent\.stalld"):
        get_logger().event("agent.stalld")


def test_a_running_daemon_logs_an_unlisted_event_as_it_is(begin: Begin, out: TextIO) -> None:
    """A typing error must not abort a kill."""
    sink = begin(stream=out)
    get_logger().event("agent.stalld", agent_id="a1")
    finish(sink)
    assert lines(out)[0]["event"] == "agent.stalld"


def test_every_event_named_in_the_source_is_listed() -> None:
    """`.event("x.y"` anywhere in the package."""
    package = Path(__file__).parents[2] / "watchdog"
    named = {
        name
        for path in package.rglob("*.py")
        for name in re.findall(r"\.event\(\s*\"([a-z_.]+)\"", path.read_text(encoding="utf-8"))
    }
    assert named <= CATALOGUE.keys()


def test_a_line_is_json_with_the_event_first(begin: Begin, out: TextIO) -> None:
    """Bound fields, durations in seconds, UTC time under `ts`."""
    sink = begin("info", "json", stream=out)
    log = get_logger(host="h1").bind(agent_id="a1")
    log.event("agent.late", silence=timedelta(seconds=90.5), at=datetime(2026, 1, 1, tzinfo=UTC), tags={"b", "a"})
    log.event("sweep.finished")  # debug
    finish(sink)
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


def test_a_library_logs_in_the_same_form(begin: Begin, out: TextIO) -> None:
    """APScheduler, SQLAlchemy, warnings: one event, their text in a field, tracebacks with them; no INFO of theirs."""
    sink = begin("debug", "json", stream=out)
    logging.getLogger("apscheduler.executors.default").info("Running job")
    try:
        raise OSError("no space")
    except OSError:
        logging.getLogger("apscheduler.executors.default").exception("Job %s raised", "sweep")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", UserWarning, stacklevel=1)
    finish(sink)
    first, second = lines(out)
    assert (first["event"], first["message"], first["level"]) == ("log.message", "Job sweep raised", "error")
    assert first["logger"] == "apscheduler.executors.default"
    assert "OSError: no space" in str(first["exception"])
    assert (second["event"], second["logger"]) == ("log.message", "py.warnings")


def test_an_error_that_python_would_print_has_the_same_form(begin: Begin, out: TextIO) -> None:
    """O15: an exception that ends a thread, and one in a finalizer; afterwards Python prints again."""

    class Broken:
        def __del__(self) -> None:
            raise OSError("nobody catches this")

    def ends() -> None:
        raise OSError("no space")

    former = threading.excepthook, sys.unraisablehook
    sink = begin("info", "json", stream=out)
    thread = threading.Thread(target=ends, name="reader")
    thread.start()
    thread.join()
    Broken()
    finish(sink)
    first, second = lines(out)
    assert (first["event"], first["level"], first["message"]) == ("log.message", "error", "a thread ended: reader")
    assert "OSError: no space" in str(first["exception"])
    assert "OSError: nobody catches this" in str(second["exception"])
    assert (threading.excepthook, sys.unraisablehook) == former


def test_environments_and_command_lines_are_dropped(begin: Begin, out: TextIO) -> None:
    """They contain keys and passwords; none may be logged by accident."""
    sink = begin("info", "json", stream=out)
    get_logger(cmdline="x --password y").event("agent.gone", environ={"TOKEN": "secret"}, argv=["x"], comm="sh")
    finish(sink)
    assert "secret" not in text(out)
    assert "password" not in text(out)
    assert lines(out)[0]["comm"] == "sh"


def test_fields_cannot_replace_event_and_level(begin: Begin, out: TextIO) -> None:
    """Any field may contain an agent's own text."""
    sink = begin("info", "json", stream=out)
    get_logger().event("agent.gone", event="x", level="y", ts="z", name="alpha", odd=object)
    finish(sink)
    line = lines(out)[0]
    assert (line["event"], line["event_"], line["level_"], line["name"]) == ("agent.gone", "x", "y", "alpha")


def test_json_for_the_journal_has_a_priority_before_each_line(begin: Begin, tmp_path: Path) -> None:
    """If `json` is configured, and only if the journal really reads this very stream."""
    for matches, pattern in ((True, r'<4>\{"event": "agent.late"'), (False, r'\{"event": "agent.late"')):
        path = tmp_path / str(matches)
        with path.open("w", encoding="utf-8") as stream:
            found = os.fstat(stream.fileno())
            own = f"{found.st_dev}:{found.st_ino + (not matches)}"
            sink = begin("info", "json", stream=stream, environ={"JOURNAL_STREAM": own})
            get_logger().event("agent.late")
            finish(sink)
        assert re.match(pattern, path.read_text())


def test_long_values_are_cut_and_passwords_in_urls_are_hidden(begin: Begin, out: TextIO) -> None:
    """A note of a megabyte, a tree of ten thousand pids, a URL in an error's text: a line stays a line."""
    sink = begin("info", "json", stream=out)
    get_logger().event(
        "agent.late", note="n" * 1_000_000, pids=list(range(10_000)), error="at postgresql://me:pa55@db/x"
    )
    get_logger().event("agent.late", note="n" * LONGEST)
    finish(sink)
    first, second = lines(out)
    assert first["note"] == f"{'n' * LONGEST}… ({1_000_000 - LONGEST} more)"
    assert first["error"] == "at postgresql://me:***@db/x"
    assert len(text(out).splitlines()[0]) < 20_000
    assert second["note"] == "n" * LONGEST


def test_level_form_and_file_change_while_running(begin: Begin, out: TextIO, tmp_path: Path) -> None:
    """As by SIGHUP; existing loggers follow, and no line is lost on the way."""
    sink = begin("warning", "json", stream=out)
    log = get_logger()
    log.event("agent.gone", n=1)  # info
    log.event("agent.late", n=2)
    wait_for(lambda: "agent.late" in text(out))
    change(sink, "info", "text", str(tmp_path / "log"), stream=out)
    log.event("agent.gone", n=3)
    finish(sink)
    assert [line["n"] for line in lines(out)] == [2]
    assert re.search(r"agent\.gone +n=3", (tmp_path / "log").read_text())


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_readable_lines(begin: Begin, environ: dict[str, str], coloured: bool) -> None:
    """In colour, unless NO_COLOR; no foreign control sequence reaches the terminal, not even in a traceback."""
    reader, writer = pty.openpty()
    with TextIOWrapper(os.fdopen(writer, "wb", buffering=0), write_through=True) as stream:
        sink = begin(stream=stream, environ=environ)
        evil = "\x1b]0;evil\x07\n"
        get_logger().event("agent.late", agent_id="a1", note=evil, notes=[evil], exc_info=ValueError(evil))
        finish(sink)
        shown = os.read(reader, 8192).decode()
    os.close(reader)
    assert ("\x1b[" in shown) is coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert re.search(r"^\d\d:\d\d:\d\d \[warning *\] agent\.late +agent_id=a1", plain)  # local time, to the second
    assert plain.count("evil") == 3
    assert "\x1b" not in plain
    assert "\x07" not in plain


def test_an_unprintable_value_does_no_harm(begin: Begin, out: TextIO) -> None:
    """Its line is lost, and the log says so."""

    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    sink = begin("info", "json", stream=out)
    get_logger().event("agent.late", value=Unprintable())
    get_logger().event("agent.late", n=2)
    finish(sink)
    assert [(line["event"], line.get("lost")) for line in lines(out)] == [("agent.late", None), ("log.lost", 1)]


def test_the_process_exits_although_its_log_has_no_reader() -> None:
    """The writing thread must not keep the interpreter alive."""
    script = (
        "from watchdog.telemetry.logger import *\n"
        "sink = set_up('info', 'json'); log = get_logger()\n"
        "[log.event('agent.late', text='x' * 200) for _ in range(2000)]\n"
        "finish(sink, 0.1); raise SystemExit(7)\n"
    )
    reader, writer = os.pipe()
    done = subprocess.run([sys.executable, "-c", script], stderr=writer, timeout=60, check=False)
    os.close(reader)
    os.close(writer)
    assert done.returncode == 7


def test_levels_are_those_of_the_catalogue(begin: Begin, out: TextIO) -> None:
    """A caller cannot choose another one."""
    sink = begin("warning", "json", stream=out)
    for name in CATALOGUE:
        get_logger().event(name)
    finish(sink)
    assert [line["event"] for line in lines(out)] == [n for n, entry in CATALOGUE.items() if entry.level >= WARNING]
    assert EventLogger.strict


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for the effect of a thread, with a deadline."""
    deadline = threading.Event()
    timer = threading.Timer(seconds, deadline.set)
    timer.start()
    try:
        while not condition():
            assert not deadline.wait(0.005), "it did not happen in time"
    finally:
        timer.cancel()
        timer.join()
