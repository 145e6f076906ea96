"""Words are true: what is shown is of now, one number stands for one thing, events come in the order of happening."""

from typing import Any

from tests.world import World


def order_of(names: list[str], *wanted: str) -> list[str]:
    return [name for name in names if name in wanted]


def test_the_history_has_the_end_of_an_agent_in_the_order_of_the_log(world: World) -> None:
    """O16: proved dead, then what was put in order, then the task, and the agent's own end last of all."""
    world.start()
    world.run("alpha", "sleep", "600", options=("--task", "T-1", "--temp-dir", "auto"))
    world.wait_status("alpha", "running")
    world.cli("cancel", "T-1")
    world.wait_event("agent.ended", name="alpha")
    end = ("kill.finished", "cleanup.hook_finished", "task.cancelled", "agent.ended")

    logged = order_of([event["event"] for event in world.events()], *end)
    told: list[Any] = world.story("alpha")["events"]
    shown = world.cli("why", "alpha").stdout.partition("what happened")[2].splitlines()
    assert logged == list(end)
    assert order_of([event["event"] for event in told], *end) == list(end)
    lines = [next(number for number, line in enumerate(shown) if word in line) for word in end if "hook" not in word]
    removed = next(number for number, line in enumerate(shown) if "cleanup temp_dir: done" in line)
    assert sorted([*lines, removed]) == [lines[0], removed, *lines[1:]]


def test_the_order_is_the_same_where_nothing_was_left_to_put_in_order(world: World) -> None:
    """No hook runs: the proof is committed with the row's end, and said before it."""
    world.start()
    world.run("alpha", "sleep", "600")
    world.wait_status("alpha", "running")
    world.cli("kill", "alpha", "--no-cleanup")
    names = [event["event"] for event in world.story("alpha")["events"]]
    assert names[-2:] == ["kill.finished", "agent.ended"]
