"""Each signal with its age and its source; what is missing is reported as missing, with the reason."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.agents.state_of import put
from tests.registry.samples import FULL, NOW
from watchdog.agents.agent import Agent
from watchdog.control.views.evidence import Json, signals
from watchdog.core.agent import Policy, Registration, State, Status, Verdict
from watchdog.core.observed_activity import ActivityKind, Sight

PLAIN = Registration("a" * 32, "a", 1000, "h", "b")


def agent(reg: Registration = PLAIN, **more: object) -> Agent:
    made = Agent(reg, Policy(), Status.RUNNING)
    put(made, **more)
    return made


def of(one: Agent, name: str) -> Json:
    """That one signal."""
    (found,) = [signal for signal in signals(one, NOW) if signal["signal"] == name]
    return found


def test_each_signal_says_something_or_why_it_does_not() -> None:
    """Never both, never neither; of one that said nothing, and of one that said much."""
    much = agent(FULL, promised=True, beats=2, state=State.WORKING, tool="Bash", progress=0.5)
    much.sights.see(ActivityKind.CPU, "used CPU")
    for one in (agent(), much):
        for signal in signals(one, NOW):
            assert (signal["says"] is None) != (signal["missing"] is None), signal
            assert signal["trust"], signal
            assert signal["says"] is not None or signal["age_seconds"] is None, signal
    kinds = [str(kind) for kind in ActivityKind]
    assert [one["signal"] for one in signals(agent(), NOW) if one["signal"] in kinds] == kinds


def test_an_agent_without_a_promise_is_reported_as_not_killed_for_silence() -> None:
    """The most frequent question."""
    assert of(agent(), "promise")["missing"] == "it promised no heartbeats; silence alone never kills it"
    promise = of(agent(promised=True, silence=timedelta(seconds=3)), "promise")
    assert promise["says"] == "stalled after 2m of silence"


def test_a_heartbeat_is_told_with_all_that_excuses_its_silence() -> None:
    """What was not counted, and what could not be heard."""
    one = agent(promised=True, beats=2, silence=timedelta(seconds=61), forgiven=timedelta(seconds=5))
    put(one, channel_lost=True, late_looks=1)
    beat = of(one, "heartbeat")
    assert (beat["says"], beat["age_seconds"]) == ("2 received, the last", 61.0)
    more = str(beat["more"])
    assert "5s of that not counted" in more
    assert "could not reach the daemon" in more
    assert "1 look in a row found it too silent" in more
    one.judged.verdict = Verdict.GONE
    assert "could not reach the daemon" not in str(of(one, "heartbeat")["more"])
    assert of(agent(age=timedelta(seconds=90)), "heartbeat")["missing"] == "none yet in 1m30s of watched time"


def test_what_is_seen_has_the_age_of_the_sight() -> None:
    """And its source."""
    one = agent()
    one.sights.seen[ActivityKind.CPU] = Sight("used CPU", timedelta(seconds=4))
    seen = of(one, "cpu")
    assert (seen["says"], seen["age_seconds"], seen["trust"]) == ("used CPU", 4.0, "the kernel's word")


@pytest.mark.parametrize(
    ("kind", "reg", "change", "words"),
    [
        (ActivityKind.LOG, PLAIN, {}, "none was named"),
        (ActivityKind.LOG, replace(PLAIN, log="/l"), {}, "looked at when it has been silent for a while"),
        (ActivityKind.CHILD, PLAIN, {}, "none at work"),
        (ActivityKind.CPU, PLAIN, {"verdict": Verdict.GONE}, "it has ended"),
        (
            ActivityKind.CPU,
            PLAIN,
            {"promised": True, "silence": timedelta(seconds=60)},
            "nothing seen since it fell silent",
        ),
    ],
)
def test_what_was_not_seen_is_told_with_the_reason(
    kind: ActivityKind, reg: Registration, change: dict[str, object], words: str
) -> None:
    """It is no evidence."""
    one = agent(reg)
    put(one, **change)
    assert of(one, str(kind))["missing"] == words
    if reg.log is not None or kind is ActivityKind.CPU:
        one.sights.looked(kind, "permission denied")
        assert of(one, str(kind))["missing"] == "the look failed: permission denied"


def test_a_beat_file_is_told_where_one_was_named() -> None:
    """Read, or for how long it could not be."""
    assert not [one for one in signals(agent(), NOW) if one["signal"] == "beat file"]
    one = agent(replace(PLAIN, beat_file="/b"))
    assert of(one, "beat file")["says"] == "is read"
    put(one, unread=timedelta(seconds=30))
    assert of(one, "beat file")["missing"] == "could not be read for 30s"


def test_a_secret_in_the_name_of_a_tool_is_hidden() -> None:
    """Others than its owner may be admins."""
    tool = str(of(agent(tool="curl sk-ant-a1b2c3d4e5f6a1b2c3d4e5f6"), "tool")["says"])
    assert tool.startswith("curl ")
    assert "a1b2c3" not in tool
