"""Hostile rows, read by a real daemon: `python -m tests.e2e.hostile_rows [edited]`, as root of a pid namespace.

Each row is harmless or quarantined with one clear error; nothing is signalled or removed because of it, and the other
rows are served: the one agent that really stalls is killed. A daemon with a bug here may signal -1, so never run this
outside a pid namespace.

`edited`: the same columns, and status and keys, are changed by hand while a daemon watches their agents.
"""

import os
import signal
import sys
from pathlib import Path

from tests.world import World, alive, make_world, started_at, wait_for

NOBODY = "4000000"  # above pid_max of most hosts, below the greatest possible value: no such process
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
    "cgroup /": {"cgroup_path": "'/'"},
    "cgroup of bytes": {"cgroup_path": "x'2f61'"},
    "the tester himself, silent for a year": {
        "pid": "{tester}",
        "start_ticks": "{tester_ticks}",
        "promised": "1",
        "silence_seconds": "31536000",
    },
}

EDITS = {
    **ROWS,
    **{f"status {word}": {"status": f"'{word}'"} for word in ("queued", "starting", "ending", "unkillable")},
    "the tester's identity": {"pid": "{tester}", "start_ticks": "{tester_ticks}"},
    "version 0": {"version": "0"},
    "a name that is taken": {"name": "'victim'"},
    "its own child": {"parent_id": "agent_id"},
    "a parent that is nobody": {"parent_id": "'nobody'"},
}
CLOSED = {  # agents that are released: whoever closed the row wants no further action
    **{f"status {word}": {"status": f"'{word}'"} for word in ("killed", "completed", "lost", "weird")},
    "another agent's id": {"agent_id": f"'{'f' * 32}'"},
    "deleted": {},
}


def main() -> None:
    for world in make_world(stall={"after_seconds": 2}, cleanup={"roots": ["/nowhere"]}):
        edited(world) if sys.argv[1:] == ["edited"] else play(world)


def edited(world: World) -> None:
    """They keep running as registered; a kill works where a row exists; one clear error reports the rest."""
    world.configure(stall={"after_seconds": 600}, cleanup={"roots": ["/nowhere"]}, log={"level": "debug"})
    world.start()
    victim = world.registered("victim", "sleep", "1000")
    edits = {**{what: row for what, row in EDITS.items() if "a status" not in what}, **CLOSED}
    names = {what: f"row{number}x" for number, what in enumerate(edits)}
    processes = {
        what: world.registered(name, "sleep", "1000", stall_after_seconds=2 if what in CLOSED else 600)
        for what, name in names.items()
    }
    ids = {agent["name"]: agent["agent_id"] for agent in world.ask("GET", "/v1/agents")[1]["agents"]}
    tester = {"tester": str(os.getpid()), "tester_ticks": str(started_at(os.getpid()))}
    for what, columns in edits.items():
        values = {c: v.format(canary="/x", roots="/y", **tester) if "{" in v else v for c, v in columns.items()}
        where = f"WHERE agent_id = '{ids[names[what]]}'"
        pairs = ", ".join(f"{column} = {value}" for column, value in values.items())
        if what in CLOSED:  # a promise, which they then break
            world.ask("POST", f"/v1/agents/{ids[names[what]]}/beat", {})
        world.sql(f"UPDATE agent_lifecycle SET {pairs} {where}" if pairs else f"DELETE FROM agent_lifecycle {where}")

    known = {names[what] for what in edits if what not in CLOSED} | {"victim"}
    wait_for(
        lambda: {a["name"] for a in world.ask("GET", "/v1/agents")[1]["agents"]} == known, "the rest is let go", 60
    )
    world.wait_sweeps(4)
    for path in ("/v1/agents?all=1", "/v1/events", "/v1/status", *(f"/v1/agents/{name}" for name in known)):
        assert world.ask("GET", path)[0] == 200, path
    assert all(alive(process.pid) for process in processes.values())
    status, answer = world.ask("POST", "/v1/kill", {"targets": sorted(known - {"victim"}), "force": True})
    assert (status, answer["success"]) == (200, True), [r for r in answer["killed_agents"] if not r["success"]]
    ended = {what for what, process in processes.items() if not alive(process.pid)}
    assert ended == set(edits) - set(CLOSED)
    assert alive(victim.pid)
    assert world.signalled() == {processes[what].pid for what in ended}
    errors = [e for e in world.events() if e["level"] == "error" or "exception" in e]
    assert {e["event"] for e in errors} == {"row.quarantined"}, errors
    assert len(errors) == len({e["agent_id"] for e in errors}) == 3  # weird, another id, deleted
    assert world.stop() == 0
    print(f"rows edited under a running daemon survived: {len(edits)} of {len(edits)}")


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
    world.wait_event("kill.finished", after=before, name="victim")
    wait_for(lambda: not alive(victim), "the stalled agent is ended")
    settled = {"row.quarantined", "agent.ended", "kill.unkillable", "kill.held"}

    def told() -> set[str]:
        return {str(e.get("agent_id")) for e in world.events()[before:] if e["event"] in settled}

    # Nothing to report about these: another host's, and those that are still starting.
    quiet = {ids[w] for w in ("another host", "no pid, but it runs", "the last year")}
    try:
        wait_for(lambda: set(ids.values()) - told() <= quiet, "each row is settled")
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
    """Only the victim was signalled; each quarantined row was reported once, as text."""
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
