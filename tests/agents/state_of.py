"""Brings an agent into a state that otherwise takes hours: sets its fields by name, whichever part has them."""

from dataclasses import fields, replace

from watchdog.agents.agent import Agent


def put(agent: Agent, **state: object) -> None:
    """`silence`: its length so far."""
    beat, silence = agent.heartbeat, agent.heartbeat.silence
    spoken = (beat.said, beat.rhythm, beat.subagents, beat.ages, silence, silence.doubts, beat)
    parts = (*spoken, agent.tree, agent.exit, agent.judged, agent.ending, agent.owner, agent.reported, agent)
    for name, value in state.items():
        if name == "silence":
            silence.lasted = value  # type: ignore[assignment] # given by the test
        elif name in {one.name for one in fields(silence.hindrance)}:
            silence.hindrance = replace(silence.hindrance, **{name: value})  # type: ignore[arg-type]
        else:
            part = next(one for one in parts if hasattr(one, name))
            setattr(part, name, value)
