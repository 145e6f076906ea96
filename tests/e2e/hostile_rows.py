"""Hostile rows, played by a real daemon: `python -m tests.e2e.hostile_rows`, as root of a pid namespace of its own.

Each row is harmless or set aside with one clear error; nobody is signalled for it and nothing removed, and the others
are served: the one agent that really stalls is ended. A daemon that fails here may signal -1, so never outside.
"""

import os
import signal
from pathlib import Path

from tests.world import World, alive, make_world, started_at, wait_for

NOBODY = "4000000"  # above pid_max of most hosts, below the greatest there can be: no such process
ROWS: dict[str, dict[str, str]] = {
    "pid 0": {"pid": "0"},
    "pid 1": {"pid": "1"},
    "pid -1": {"pid": "-1"},
    "pid 2^31": {"pid": "2147483648"},
    "pid 2^63": {"pid": "9223372036854775807"},
    "pid of letters": {"pid": "'twelve'"},
    "pid with a fraction": {"pid": "1.5"},
    "pid endless": {"pid": "9e999"},
    "pid of bytes": {"pid": "x'ff'"},
    "no pid, but it runs": {"pid": "NULL", "start_ticks": "NULL"},
    "ticks -1": {"start_ticks": "-1"},
    "ticks of letters": {"start_ticks": "'soon'"},
    "no ticks": {"start_ticks": "NULL"},
    "another boot": {"boot_id": "'00000000-0000-0000-0000-000000000000'"},
    "no boot": {"boot_id": "''"},
    "another host": {"host": "'elsewhere'"},
    "a status that is none": {"status": "'weird'"},
    "uid -1": {"owner_uid": "-1"},
    "uid 2^40": {"owner_uid": "1099511627776"},
    "uid of letters": {"owner_uid": "'root'"},
    "tags cut off": {"tags": "'[\"a\"'"},
    "tags of numbers": {"tags": "'[1, 2]'"},
    "tags without end": {"tags": "'" + "[" * 50_000 + "'"},
    "a time of words": {"created_at": "'yesterday'"},
    "the year 0": {"created_at": "'0000-00-00 00:00:00'"},
    "the last year": {"created_at": "'9999-12-31 23:59:59.999999'"},
    "a time that is a number": {"last_heartbeat": "17"},
    "a name that moves cursors": {"name": "char(27) || '[2J'"},
    "a name of nothing": {"name": "''"},
    "silence of words": {"silence_seconds": "'long'"},
    "silence -5": {"silence_seconds": "-5"},
    "silence endless": {"silence_seconds": "9e999"},
    "a limit of words": {"stall_after_seconds": "'soon'"},
    "a limit endless": {"stall_after_seconds": "9e999"},
    "a version of words": {"version": "'x'"},
    "a socket that is a file": {"notify_socket": "'/etc/passwd'"},
    "a verdict that is none": {"verdict": "'dead'"},
    "bytes that are no UTF-8": {"note": "cast(x'fffe' AS TEXT)"},
    "temp dir /": {"temp_dir": "'/'"},
    "temp dir ..": {"temp_dir": "'..'"},
    "temp dir of nothing": {"temp_dir": "''"},
    "temp dir with a line end": {"temp_dir": "'/tmp/a' || char(10) || 'b'"},
    "temp dir $HOME": {"temp_dir": "'$HOME'"},
    "temp dir relative": {"temp_dir": "'canary'"},
    "temp dir too long": {"temp_dir": "'/" + "x" * 5000 + "'"},
    "temp dir outside": {"temp_dir": "'{canary}'"},
    "temp dir by dots": {"temp_dir": "'{roots}/../canary'"},
    "temp dir that is the roots": {"temp_dir": "'{roots}'"},
    "temp dir /proc": {"temp_dir": "'/proc/self'"},
    "worktree /": {"worktree_path": "'/'"},
    "worktree ..": {"worktree_path": "'..'"},
    "worktree of nothing": {"worktree_path": "''"},
    "worktree that is none": {"worktree_path": "'{canary}'"},
    "beat file that is a device": {"beat_file": "'/dev/zero'"},
    "the tester himself, silent for a year": {
        "pid": "{tester}",
        "start_ticks": "{tester_ticks}",
        "promised": "1",
        "silence_seconds": "31536000",
    },
}


def main() -> None:
    for world in make_world(stall={"after_seconds": 2}, cleanup={"roots": ["/nowhere"]}):
        play(world)


def play(world: World) -> None:
    canary, roots = world.dir / "canary", world.dir / "roots"
    for directory in (canary, roots):
        directory.mkdir()
        (directory / "work").write_text("a day of it\n")
    world.configure(stall={"after_seconds": 2}, cleanup={"roots": [str(roots)]})
    world.start()
    bystander = world.spawn("sleep", "1000")
    world.run("victim", *world.script("agent.py", "beat=0.2"), options=("--stall-after", "2s"))
    world.wait_event("agent.first_beat", name="victim")
    victim = world.agents()["victim"]["pid"]
    (row,) = world.sql("SELECT agent_id FROM agent_lifecycle")
    columns = [str(column[1]) for column in world.sql("PRAGMA table_info(agent_lifecycle)")]
    world.stop()
    facts = {
        "canary": str(canary),
        "roots": str(roots),
        "tester": str(os.getpid()),
        "tester_ticks": str(started_at(os.getpid())),
    }
    ids = {}
    for number, (what, hostile) in enumerate(ROWS.items()):
        ids[what] = f"{number:032}"
        values = {"agent_id": f"'{ids[what]}'", "name": f"'row{number}x'", "pid": NOBODY, "start_ticks": "77"}
        values |= {"pidfd_inode": "NULL", "notify_socket": "NULL", "promised": "0"}
        values |= {column: value.format(**facts) if "{" in value else value for column, value in hostile.items()}
        picked = ", ".join(values.get(column, column) for column in columns)
        names = ", ".join(columns)
        world.sql(
            f"INSERT INTO agent_lifecycle ({names}) SELECT {picked} FROM agent_lifecycle WHERE agent_id = '{row[0]}'"
        )

    before = len(world.events())
    world.start()
    os.kill(victim, signal.SIGSTOP)
    world.wait_event("kill.finished", after=before, name="victim", seconds=60)
    wait_for(lambda: not alive(victim), "the stalled agent is ended")
    settled = {"row.quarantined", "agent.ended", "kill.unkillable", "kill.held"}

    def told() -> set[str]:
        return {str(e.get("agent_id")) for e in world.events()[before:] if e["event"] in settled}

    # Nothing to say of these: another host's, and those that still start.
    quiet = {ids[w] for w in ("another host", "no pid, but it runs", "the last year")}
    try:
        wait_for(lambda: set(ids.values()) - told() <= quiet, "each row is settled", 60)
    except AssertionError:
        left = [what for what, agent_id in ids.items() if agent_id not in told() | quiet]
        raise AssertionError(f"not settled: {left}\n{world.cli('list', check=False).stdout}") from None

    judge(world, before, ids, victim)
    assert alive(bystander.pid)
    assert world.daemon is not None
    assert world.daemon.poll() is None
    for directory in (canary, roots):
        assert (directory / "work").read_text() == "a day of it\n", directory
    assert Path("/etc/passwd").exists()
    print(f"hostile rows survived: {len(ROWS)} of {len(ROWS)}")


def judge(world: World, before: int, ids: dict[str, str], victim: int) -> None:
    """Nobody but the victim was signalled; each row that was set aside was so once, and in words."""
    events = world.events()[before:]
    signalled = {pid for e in events if e["event"] == "kill.signal_sent" for pid in e["pids"]}
    assert signalled <= {victim}, signalled
    for what, agent_id in ids.items():
        aside = [e for e in events if e["event"] == "row.quarantined" and e.get("agent_id") == agent_id]
        assert len(aside) <= 1, (what, aside)
        for event in aside:
            column = next(iter(ROWS[what]))
            assert column in event["why"], (what, event["why"])
            assert len(event["why"]) < 2100
            print(f"  {what}: {event['why'][:150]!r}")


if __name__ == "__main__":
    main()
