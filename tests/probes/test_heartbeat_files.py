"""Heartbeat files with real helpers: an older time is no beat, and an unwritable file is no silence."""

import os
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.probes.test_output_growth import ME, Looking, run


@pytest.mark.skipif(ME != 0, reason="needs root: to mount a file system that can be filled")
def test_a_beat_that_could_not_be_written_is_no_silence(tmp_path: Path) -> None:
    """Case C7: on a full disk its agent is unknown; when there is room again, it gets one fresh limit."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)], check=True)
    beat, filler = tmp_path / "beat", tmp_path / "filler"

    async def story(made: Looking) -> None:
        agent, key = made.agent, "beat file"
        agent.reg = replace(agent.reg, beat_file=str(beat))
        await made.look(key, made.files.look)
        with suppress(OSError):
            filler.write_bytes(b"x" * 100_000)
        await made.look(key, made.files.look)
        assert made.unread()

        agent.heartbeat.silence.lasted = timedelta(minutes=9)
        filler.unlink()
        await made.look(key, made.files.look)
        assert not made.unread()
        assert (agent.heartbeat.silence.lasted, agent.heartbeat.silence.counted) == (timedelta(minutes=9), timedelta())

        beat.write_text("again")
        await made.look(key, made.files.look)
        assert agent.heartbeat.silence.lasted == timedelta()

    try:
        beat.touch()
        run(story)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_beat_in_a_directory_that_is_closed_to_its_agent_is_no_silence() -> None:
    """Case C7, variant: mode 000. Its agent is unknown; when it is opened again, it gets one fresh limit."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # pytest's own is closed to other uids
        os.chmod(place, 0o711)
        inner = Path(place) / "beats"
        inner.mkdir()
        (inner / "beat").touch()
        uid = ME or 61001
        for path in (inner, inner / "beat"):
            os.chown(path, uid, -1)

        async def story(made: Looking) -> None:
            agent, key = made.agent, "beat file"
            agent.reg = replace(agent.reg, beat_file=str(inner / "beat"), owner_uid=uid)
            await made.look(key, made.files.look)
            inner.chmod(0)
            await made.look(key, made.files.look)
            assert made.unread()
            assert f"{inner}/beat" in agent.heartbeat.silence.hindrance.unread_why
            agent.heartbeat.silence.lasted = timedelta(minutes=9)
            inner.chmod(0o700)
            await made.look(key, made.files.look)
            assert not made.unread()
            assert (agent.heartbeat.silence.lasted, agent.heartbeat.silence.counted) == (
                timedelta(minutes=9),
                timedelta(),
            )

        run(story)


def test_a_heartbeat_file_that_was_set_to_an_older_time_is_no_beat(tmp_path: Path) -> None:
    """Case Q6: `rsync -t` or `touch -d` set it back; a later write by its agent is a beat, by whatever clock."""
    file = tmp_path / "beat"
    file.touch()

    async def story(made: Looking) -> None:
        made.agent.reg = replace(made.agent.reg, beat_file=str(file))
        await made.look("beat file", made.files.look)
        os.utime(file, (1000, 1000))
        await made.look("beat file", made.files.look)
        assert made.agent.heartbeat.rhythm.beats == 0
        os.utime(file, (1001, 1001))
        await made.look("beat file", made.files.look)
        file.write_text("x")
        await made.look("beat file", made.files.look)
        assert made.agent.heartbeat.rhythm.beats == 2

    run(story)
