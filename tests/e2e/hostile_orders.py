"""Hostile rows among the orders, like `hostile_rows`: root of a pid namespace, `python -m tests.e2e.hostile_orders`.

Each is quarantined with one clear error, and its agent lives; the one readable order is carried out.
"""

import json
from pathlib import Path
from typing import Any

from tests.world import World, alive, make_world, wait_for

NOBODY = {"host": "h", "boot_id": "b", "pid": 4_000_000, "start_ticks": 7, "pidfd_inode": None}
MEMBER = {"identity": NOBODY, "parent_pid": 2, "uid": 0, "name": "x", "state": "S", "via": "main"}
ROWS: dict[str, dict[str, Any]] = {
    "grace -1": {"options": {"grace_seconds": -1}},
    "grace of words": {"options": {"grace_seconds": "soon"}},
    "grace endless": {"options": '{"grace_seconds": 1e999}'},
    "grace beyond all": {"options": {"grace_seconds": 1e300}},
    "asked for ever": {"options": {"ask_seconds": 1e300}},
    "options that are a list": {"options": []},
    "options cut off": {"options": '{"a'},
    "options without end": {"options": '{"a":' * 50_000},
    "a reason that is none": {"reason": "weird"},
    "claimed by nobody": {"claimed_by": None},
    "a time of words": {"created_at": "yesterday"},
    "pid 1": {"pid": 1},
    "pid -1": {"pid": -1},
    "pid of letters": {"pid": "twelve"},
    "member pid 1": {"members": [{**MEMBER, "identity": {**NOBODY, "pid": 1}}]},
    "member pid -1": {"members": [{**MEMBER, "identity": {**NOBODY, "pid": -1}}]},
    "member pid 2^40": {"members": [{**MEMBER, "identity": {**NOBODY, "pid": 2**40}}]},
    "member without pid": {"members": [{**MEMBER, "identity": {**NOBODY, "pid": None}}]},
    "member without identity": {"members": [{}]},
    "member whose identity is a list": {"members": [{**MEMBER, "identity": []}]},
    "member without boot": {"members": [{**MEMBER, "identity": {"pid": 4_000_000, "start_ticks": 7}}]},
    "member with more than there is": {"members": [{**MEMBER, "more": 1}]},
    "member without name": {"members": [{**MEMBER, "name": None}]},
    "member with uid of letters": {"members": [{**MEMBER, "uid": "root"}]},
    "member that took endless time": {"members": '[{"cpu_seconds": 1e999, ' + json.dumps(MEMBER)[1:] + "]"},
    "members of words": {"members": ["x"]},
    "members without end": {"members": "[" * 50_000},
    "evidence of words": {"evidence": "x"},
    "an end that does not say which": {"step": "cleanup", "outcome": {}},
    "an end that is none": {"step": "cleanup", "outcome": {"status": "weird"}},
    "an end in which it lives": {"step": "cleanup", "outcome": {"status": "running"}},
    "an end of one that lives": {"outcome": {"status": "killed"}, "step": "cleanup"},
}


def main() -> None:
    for world in make_world(stall={"after_seconds": 600}):
        play(world)


def play(world: World) -> None:
    world.start()
    victim = world.registered("victim", "sleep", "1000")
    names = {what: f"row{number}x" for number, what in enumerate(ROWS)}
    processes = {what: world.registered(name, "sleep", "1000") for what, name in names.items()}
    agents = {str(name): row for name, *row in world.sql("SELECT name, agent_id, host, boot_id FROM agent_lifecycle")}
    world.stop()
    order(world, agents["victim"], {})
    for what, hostile in ROWS.items():
        order(world, agents[names[what]], hostile)

    before = len(world.events())
    world.start()
    world.wait_event("kill.finished", after=before, name="victim", seconds=60)
    ids = {what: agents[name][0] for what, name in names.items()}

    def aside() -> list[dict[str, Any]]:
        return [e for e in world.events()[before:] if e["event"] == "row.quarantined"]

    wait_for(lambda: {e["agent_id"] for e in aside()} == set(ids.values()), "each is set aside")
    world.registered("later", "sleep", "1000")  # later orders are still served
    assert world.cli("kill", "later").returncode == 0
    for what, agent_id in ids.items():
        (event,) = [e for e in aside() if e["agent_id"] == agent_id]
        assert event["why"].startswith(f"{list(ROWS[what])[-1]}: "), (what, event)
        print(f"  {what}: {event['why'][:150]!r}")
    refused = world.cli("kill", names["pid 1"], check=False)
    assert (refused.returncode, "row.quarantined" in refused.stderr) == (1, True), refused.stderr
    assert not alive(victim.pid)
    assert all(alive(process.pid) for process in processes.values())
    assert not [e for e in world.events()[before:] if "exception" in e or e["event"] == "kill.failed"]
    assert world.daemon is not None
    assert world.daemon.poll() is None
    print(f"hostile orders survived: {len(ROWS)} of {len(ROWS)}")


def order(world: World, agent: list[Any], hostile: dict[str, Any]) -> None:
    """An open order of a daemon that has died since; `hostile` says what is wrong with it."""
    agent_id, host, boot_id = agent
    ours = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    row = {"request_id": agent_id[:16], "agent_id": agent_id, "reason": "operator", "by_text": "uid 0", "pid": None}
    row |= {"boot_id": boot_id, "start_ticks": 7, "created_at": "2026-11-29 04:00:00.000000", "status": "claimed"}
    row |= {"claimed_by": f"daemon 3999999 1 of boot {ours} of host {host}", "step": "term", **hostile}
    values = ["NULL" if v is None else repr(v) if isinstance(v, int) else _text(v) for v in row.values()]
    world.sql(f"INSERT INTO kill_request ({', '.join(row)}) VALUES ({', '.join(values)})")


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return "'" + text.replace("'", "''") + "'"


if __name__ == "__main__":
    main()
