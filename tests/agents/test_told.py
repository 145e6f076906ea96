"""What is told of an agent once."""

from watchdog.agents.agent import Agent
from watchdog.core.agent import Policy, Registration, Status


def agent(agent_id: str = "a" * 32, name: str = "alpha", uid: int = 1000, **rest: object) -> Agent:
    return Agent(Registration(agent_id, name, uid, "host", "boot", **rest), Policy(), Status.RUNNING)  # type: ignore[arg-type]


def test_what_others_say_is_told_five_times_of_each_kind() -> None:
    """Any number of different messages that are rejected, and of reasons of holds; ours are told beside them."""
    one = agent()
    assert sum(one.told.first_refusal(f"rejected {n}", "rejected ") for n in range(1000)) == 5
    assert sum(one.told.first(f"held operator {n}", "held operator ") for n in range(1000)) == 5
    assert [one.told.first("agent.late"), one.told.first("agent.late")] == [True, False]
    assert (len(one.told.events), len(one.told.refused)) == (6, 5)
