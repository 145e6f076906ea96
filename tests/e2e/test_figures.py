"""Metrics follow the work of a real daemon, read over TCP as Prometheus reads them."""

import urllib.request

from tests.control.test_metrics_listener import free_port
from tests.world import World, wait_for


def figures(port: int) -> dict[str, float]:
    """One scrape: `name{labels}` without our prefix, and its value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name.removeprefix("agent_watchdog_"): float(value) for name, _, value in pairs}


def test_a_kill_a_veto_and_a_failed_hook_are_counted(world: World) -> None:
    """A held stall, then its kill, and a hook that fails permanently."""
    port = free_port()
    world.configure(metrics={"listen": f"127.0.0.1:{port}"}, sweep={"interval_seconds": 0.3})
    with world.config.open("a") as config:
        config.write('[[hook]]\nname = "false"\ncommand = ["/bin/false"]\nretries = 0\n')
    world.start()
    before = figures(port)
    assert before['cleanup_failures_total{hook="false"}'] == 0
    assert before['vetoes_total{reason="operator"}'] == 0
    world.cli("hold", "--reason", "alpha: is debugged")
    world.run("alpha", *world.script("agent.py", "beat=0.2/2"), options=("--stall-after", "1.5s"))
    world.wait_event("kill.held", name="alpha")
    held = wait_for(lambda: f if (f := figures(port))['agents{verdict="stalled"}'] else None, "it is seen as stalled")
    assert held['holds{reason="operator"}'] == 1
    assert held['vetoes_total{reason="operator"}'] == 1
    world.cli("unhold")
    world.wait_status("alpha", "killed")
    after = wait_for(
        lambda: f if (f := figures(port)).get('cleanup_failures_total{hook="false"}') else None, "the hook"
    )
    after = wait_for(
        lambda: f if (f := figures(port)).get('kills_total{outcome="killed",reason="stalled"}') else None, "the kill"
    )
    assert after['holds{reason="operator"}'] == 0
    assert after["registry_up"] == after["log_up"] == 1
    assert after["registry_last_write_timestamp_seconds"] > before.get("registry_last_write_timestamp_seconds", 0)
    assert after["last_sweep_timestamp_seconds"] > before["last_sweep_timestamp_seconds"]
    assert after["sweep_seconds_count"] > before["sweep_seconds_count"]
    assert after["sweep_failures_total"] == after["log_lost_lines_total"] == after["unkillable"] == 0


def test_agents_that_need_a_person_are_counted_apart_from_idle_ones(world: World) -> None:
    """The verdict of both is `waiting`; only one of them needs a person."""
    port = free_port()
    world.configure(metrics={"listen": f"127.0.0.1:{port}"})
    world.start()
    for name in ("asks", "rests"):
        world.registered(name, "sleep", "600")
    for name, state in (("asks", "waiting"), ("rests", "idle")):
        agent_id = world.agents()[name]["agent_id"]
        assert world.ask("POST", f"/v1/agents/{agent_id}/beat", {"state": state})[0] == 204
    wait_for(lambda: figures(port).get('agents{verdict="waiting"}') == 2, "both wait")

    assert figures(port)["needs_person"] == 1
    assert world.json("status")["needs_person"] == 1
    assert world.cli("status").returncode == 0
