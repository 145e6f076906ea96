"""A reload that fails halfway keeps the former settings, in every part."""

import asyncio
import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchdog.cli.diagnosis import attention
from watchdog.cli.seen import Seen
from watchdog.config import settings
from watchdog.config.paths import Paths
from watchdog.config.settings import Settings, load
from watchdog.errors import ConfigError
from watchdog.host.service_manager import ServiceManager
from watchdog.service import main
from watchdog.service.reload import ConfigReload
from watchdog.telemetry.logger import get_logger


def test_a_part_that_cannot_take_the_new_settings_keeps_the_old_everywhere(tmp_path: Path) -> None:
    """Neither half of the new ones nor the end of the daemon; `status` shows the reason until a reload succeeds."""
    file = tmp_path / "config.toml"
    file.write_text("[sweep]\ninterval_seconds = 10\n")
    old = load(str(file))
    holding: list[Settings] = [old]
    broken = True

    class Part:
        def apply(self, settings: Settings) -> None:
            holding.append(settings)
            if broken and settings is not old:
                raise OSError(28, "No space left on device")

    async def main() -> None:
        nonlocal broken
        tracker: Any = None  # never called
        reload = ConfigReload(old, lambda: load(str(file)), asyncio.Lock(), tracker, ServiceManager({}), get_logger())
        file.write_text("[sweep]\ninterval_seconds = 20\n")
        await reload.run([Part()])
        assert holding[-1] is reload.settings is old
        assert reload.problems == ["not applied: OSError: [Errno 28] No space left on device"]
        broken = False
        await reload.run([Part()])
        assert holding[-1].interval.total_seconds() == 20
        assert not reload.problems

    asyncio.run(main())


GOOD = "[sweep]\ninterval_seconds = 10\n"
# Possible content in place of the file: its bytes, or None if it is missing.
FILES = {
    "nothing": b"",
    "blanks": b"\n \t\n",
    "comments": b"# interval_seconds = 5\n",
    "a bare section": b"[sweep]\n",
    "the same": GOOD.encode(),
    "half a line": GOOD.encode()[:-4],
    "half a word": GOOD.encode()[:20],
    "a key twice": b"[kill]\ngrace_seconds = 5\ngrace_seconds = 6\n",
    "a section twice": b"[kill]\n[kill]\n",
    "an unknown key": b"[kill]\ngrace = 5\n",
    "a wrong value": b"[kill]\ngrace_seconds = -1\n",
    "a contradiction": b"[sweep]\ninterval_seconds = 600\n[stall]\nafter_seconds = 5\n",
    "zero bytes": b"\0" * 64,
    "UTF-16": GOOD.encode("utf-16"),
    "a mark of bytes": b"\xef\xbb\xbf" + GOOD.encode(),
    "another language": b"sweep:\n  interval_seconds: 10\n",
    "too much": b"#" * 10_000_000,
    "no such user": b'[[source]]\nkind = "hcom"\nuser = "no-such-user-1"\n',
    "nothing there": None,
    "a directory": None,
    "a FIFO": None,
    "a dangling link": None,
    "writable by others": GOOD.encode(),
}


def put(kind: str, file: Path) -> None:
    """Put it in place of the configuration."""
    text = FILES[kind]
    if text is not None:
        file.write_bytes(text)
    file.chmod(0o666 if kind == "writable by others" else 0o600)
    if text is None:
        file.unlink()
    if kind == "a directory":
        file.mkdir()
    elif kind == "a FIFO":
        os.mkfifo(file)
    elif kind == "a dangling link":
        file.symlink_to("/nowhere/x")


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", FILES)
def test_a_reload_and_a_check_report_the_same_about_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str, named: bool
) -> None:
    """And `doctor` predicts what a restart does. `named`: by --config; else it is the default file."""
    file = tmp_path / "agent-watchdog" / "agent-watchdog.toml"
    file.parent.mkdir()
    file.write_text(GOOD)
    file.chmod(0o600)
    paths = Paths(os.geteuid(), str(file), str(tmp_path / "s"), "/tmp/none")
    monkeypatch.setattr(settings, "places_for", lambda *_: paths)
    monkeypatch.delenv("AGENT_WATCHDOG_CONFIG", raising=False)

    def reader() -> Callable[[], Settings]:
        return main._reader(Namespace(config=str(file) if named else None, observe=False, daemonize=False))

    async def reloaded() -> list[str]:
        tracker: Any = None  # never called
        reload = ConfigReload(before, living, asyncio.Lock(), tracker, ServiceManager({}), get_logger())
        await reload.run([])
        return reload.problems

    living = reader()
    before = living()
    put(kind, file)
    refused = asyncio.run(reloaded())
    try:
        checked = main._check(reader(), ServiceManager({}))
    except ConfigError as error:
        checked = error.exit_code
    warned = capsys.readouterr().err
    (meaning,) = [one.meaning for one in attention(Seen(uid=0, status={"config_problems": refused}))] or [""]
    if "all defaults" in meaning:
        assert checked == 0 and reader()() == settings.load(str(file) if named else None)
        assert not reader()().config.model_fields_set
        assert file.exists() == ("says nothing: a start takes all defaults" in warned)
    else:
        assert bool(refused) == bool(checked), (refused, checked)
        assert ("a restart would fail" in meaning) == bool(checked)
