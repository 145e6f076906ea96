"""The shipped configuration: a look each 10 s, silence of two minutes, three quarters of an hour."""

from collections.abc import Mapping
from typing import Any

from tests.verdicts.hours import BEAT, Hours, Spoken, every, scene
from tests.verdicts.table import EXPIRED, LINGERING, NEVER_STARTED, STALLED

LENGTH = 45 * 60.0
AFTER, CONFIRMED = 120.0, 2 * 10 + 1.0  # what the shipped file says, and the promise of how soon it is asked for


def lives(name: str, situation: str, *says: Any, told: Mapping[str, int] | None = None, **rest: Any) -> Spoken:
    """`says`: lists of words."""
    words = [word for part in says for word in part]
    return Spoken(name=name, situation=situation, says=words, told=told, **rest)


def dies(
    name: str, situation: str, at: float, *says: Any, right: str = STALLED, slack: float = CONFIRMED, **rest: Any
) -> Spoken:
    """`at`: the second at which its time is up."""
    words = [word for part in says for word in part]
    first = min((seconds for seconds, _ in words), default=0.0)
    return Spoken(
        name=name, situation=situation, says=words, right=right, earliest=at - first, latest=at - first + slack, **rest
    )


def lease(seconds: float) -> str:
    return f"{BEAT}\nX_AGENT_SILENT_FOR={seconds:g}"


def tool(seconds: float, name: str = "make") -> str:
    return f"{BEAT}\nX_AGENT_TOOL={name}\nX_AGENT_TOOL_LIMIT={seconds:g}"


def state(word: str) -> str:
    return f"X_AGENT_STATE={word}"


BEATING = [
    lives("beats", "beats each 30 s", every(30, LENGTH), told={"agent.late": 0}),
    lives("in-time", "beats each 118 s of 120", every(118, LENGTH), told={"agent.late": 0}),
    lives("one-look", "late for 5 s again and again", every(125, LENGTH, start=10), told={"agent.late": 21}),
    lives(
        "its-rhythm",
        "beats each 190 s, and said it will each 100 s",
        every(190, LENGTH),
        body={"interval_seconds": 100},
    ),
    lives("by-http", "beats by HTTP", every(60, LENGTH, {}), told={"agent.late": 0}),
    lives("same-words", "beats with the same words each time", every(60, LENGTH, f"{BEAT}\nX_AGENT_NOTE=same")),
    lives(
        "own-limit",
        "beats each 15 min, after it set its own limit to 20",
        every(900, LENGTH, {"after_seconds": 1200}),
    ),
    lives("four-hours", "silent, and promised a beat in four hours", [], body={"stall_after_seconds": 4 * 3600}),
    dies("mute", "beats for ten minutes, then no more", 600 + AFTER, every(60, 600)),
    dies("alternates", "silent for 96 s ten times, then for ever", 960 + AFTER, every(96, 960)),
    dies("own-short", "mute after it set its own limit to 30 s", 30, [(0, {"after_seconds": 30})]),
    dies("mates", "mute beside two of its group that beat", 240 + AFTER, every(60, 240), body={"tags": ["group"]}),
    lives("mate-1", "beats beside a mute one of its group", every(60, LENGTH), body={"tags": ["group"]}),
    dies(
        "nonsense",
        "says only what is no beat",
        300 + AFTER,
        [(300, BEAT)],
        every(30, LENGTH, "X_AGENT_STATE=dancing", 330),
    ),
]
WAITING = [
    lives("idle", "idle and silent", [(0, BEAT), (60, state("idle"))], told={"agent.needs_human": 0, "agent.late": 0}),
    lives(
        "prompt",
        "waits at a permission prompt for 40 min, then works",
        [(60, state("waiting"))],
        every(60, LENGTH, start=2460),
        told={"agent.needs_human": 1, "agent.human_answered": 1, "agent.late": 0},
    ),
    lives(
        "prompt-beats",
        "B2: waits at a permission prompt and beats",
        every(30, LENGTH, state("waiting")),
        told={"agent.needs_human": 1, "agent.human_answered": 0},
    ),
    lives(
        "prompts",
        "two prompts of 10 min, work between",
        [(60, state("waiting"))],
        every(60, 1200, start=660),
        [(1260, state("waiting"))],
        every(60, LENGTH, start=1860),
        told={"agent.needs_human": 2, "agent.human_answered": 2},
    ),
    lives(
        "denied",
        "a vendor's prompt is answered with no after 10 min, and it rests",
        [(0, {"state": "working", "tool": "Bash", "tool_limit_seconds": 120}), (5, {"state": "waiting"})],
        [(605, {"state": "idle", "tool": ""})],
        told={"agent.needs_human": 1, "agent.human_answered": 1, "agent.late": 0},
    ),
    lives(
        "prompt-again",
        "the same prompt is told again each minute",
        every(60, 1200, {"state": "waiting"}),
        every(60, LENGTH, start=1260),
        told={"agent.needs_human": 1, "agent.human_answered": 1},
    ),
    lives(
        "short-prompt",
        "a prompt that is answered within 4 min",
        [(0, BEAT), (60, state("waiting"))],
        every(60, LENGTH, start=300),
        told={"agent.needs_human": 0},
    ),
    lives("blocked", "blocked by somebody else, silent", [(60, state("blocked"))], told={"agent.needs_human": 0}),
    dies(
        "idle-mute",
        "idle for 20 min, works, then mute",
        1320 + AFTER,
        [(60, state("idle"))],
        every(60, 1320, start=1260),
    ),
    dies(
        "answered-mute",
        "works after its prompt was answered, then mute",
        960 + AFTER,
        [(0, state("waiting"))],
        every(60, 960, start=900),
    ),
]
TOOLS = [
    lives(
        "tool",
        "C1: runs a tool for 19 min, declared with 20",
        [(0, tool(1200))],
        every(60, LENGTH, f"{BEAT}\nX_AGENT_TOOL=", 1140),
        told={"agent.late": 0},
    ),
    lives("tool-again", "one declared tool after the other, 9 min each", every(540, LENGTH, tool(600))),
    dies("tool-over", "C1: runs a tool declared with 10 min, for ever", 600 + AFTER, [(0, tool(600))]),
    dies("tool-unsaid", "C1: runs a tool for ever that it did not declare", 840 + AFTER, every(60, 840)),
    dies(
        "tool-done",
        "its declared tool is done, then it is mute",
        420 + AFTER,
        [(0, tool(3600)), (420, f"{BEAT}\nX_AGENT_TOOL=")],
    ),
    *(
        lives(
            f"{kind}-405",
            f"{kind}: undeclared tools, 405 s of silence each",
            every(405, LENGTH),
            body={"type": kind},
            told={"agent.late": 0},
        )
        for kind in ("claude", "codex", "gemini")
    ),
    dies("claude-mute", "claude: mute", 900, [(0, BEAT)], body={"type": "claude"}),
    lives(
        "lease",
        "on a lease of 30 min, then beats",
        [(0, lease(1800))],
        every(60, LENGTH, start=1790),
        told={"agent.late": 0},
    ),
    lives(
        "lease-beat",
        "on a lease, and its child's library beats once",
        [(0, lease(1800)), (5, BEAT)],
        every(60, LENGTH, start=1700),
    ),
    lives("leases", "renews its lease of 11 min each 10", every(600, LENGTH, lease(660))),
    lives(
        "extend",
        "asks over HTTP for 40 min",
        [(0, BEAT), (60, {"silent_for_seconds": 2400})],
        every(60, LENGTH, start=2400),
    ),
    dies("lease-over", "its lease of 5 min ends and it is mute", 300 + AFTER, [(0, lease(300))]),
    dies("lease-given-back", "gives its lease back, then mute", 660 + AFTER, [(0, lease(3600)), (660, lease(0))]),
]
PROGRESS = [
    lives(
        "grows",
        "B5: its progress grows each 4 min",
        [(t, f"{BEAT}\nX_AGENT_PROGRESS={t // 240}") for t, _ in every(30, LENGTH)],
    ),
    lives(
        "idle-progress",
        "B5: idle, its progress stands",
        every(30, LENGTH, f"{BEAT}\nX_AGENT_STATE=idle\nX_AGENT_PROGRESS=41"),
    ),
    dies(
        "deadlocked",
        "B5: a thread beats, the work loop is deadlocked",
        1800,
        every(30, LENGTH, f"{BEAT}\nX_AGENT_PROGRESS=41"),
    ),
]
ENDS = [
    dies(
        "ttl",
        "beats, and its half hour to live is over",
        1800,
        every(60, LENGTH),
        right=EXPIRED,
        slack=11,
        body={"ttl_seconds": 1800},
        told={"agent.expires_soon": 1, "agent.expired": 1},
    ),
    lives(
        "ttl-soon",
        "beats, and is told of its end two minutes before it",
        every(60, LENGTH),
        body={"ttl_seconds": LENGTH + 120},
        told={"agent.expires_soon": 1, "agent.expired": 0},
    ),
    lives(
        "ttl-far",
        "beats, and is told nothing six minutes before its end",
        every(60, LENGTH),
        body={"ttl_seconds": LENGTH + 360},
        told={"agent.expires_soon": 0},
    ),
    lives("ttl-left", "beats, and has a minute left to live", every(60, LENGTH), body={"ttl_seconds": LENGTH + 60}),
    dies(
        "finished",
        "A7: said done, its process stays",
        600 + 60,
        every(60, 540),
        [(600, state("done"))],
        right=LINGERING,
        slack=11,
    ),
    lives(
        "done-again",
        "said done, and works on within a minute",
        [(0, BEAT), (60, state("done"))],
        every(60, LENGTH, start=90),
    ),
]
STARTS = [
    lives("unpromised", "never promised a beat, silent", [], told={"agent.late": 0}),
    lives("ready", "said READY=1 once, which promises nothing", [(5, "READY=1")], told={"agent.late": 0}),
    lives(
        "slow",
        "promised, and its first beat comes after 290 s",
        every(60, LENGTH, start=290),
        body={"stall_after_seconds": 120},
    ),
    lives(
        "late-pid",
        "its process is known after 250 s",
        every(60, LENGTH, start=280),
        pid_at=250,
        body={"stall_after_seconds": 120},
    ),
    lives("queued", "queued, nobody has started it", [], pid_at=None, body={"queued": True}),
    dies(
        "never-beats",
        "promised a beat, and none comes",
        300,
        [],
        right=NEVER_STARTED,
        slack=11,
        body={"stall_after_seconds": 120},
    ),
    dies("no-pid", "its process is never told", 300, [], right=NEVER_STARTED, slack=11, pid_at=None),
]
TIMES = [
    lives(
        "old-word",
        "beats, and `run` passes an hour-old word on",
        every(60, LENGTH),
        every(300, LENGTH, {"age_seconds": 3600}, 30),
    ),
    dies(
        "old-words",
        "mute, but for beats from the past",
        1020 + AFTER,
        every(60, 1020),
        every(30, LENGTH, {"age_seconds": 3600}, 1050),
    ),
    lives(
        "new-word",
        "beats, and says one from the future",
        every(60, LENGTH),
        every(300, LENGTH, {"age_seconds": -3600}, 30),
    ),
    dies(
        "new-words",
        "mute, but for beats from the future",
        1080 + AFTER,
        every(60, 1080),
        every(30, LENGTH, {"age_seconds": -3600}, 1110),
    ),
]
OTHERS = [
    lives(
        "told-only",
        "mute, its policy's ladder ends with a warning",
        [(0, BEAT)],
        body={"type": "watched"},
        told={"agent.stalled": 1, "agent.told": 1},
    ),
    lives("policy", "beats each 9 min, its policy says 10", every(540, LENGTH), body={"tags": ["slow"]}),
    lives("held", "mute, an operator holds it", [(0, BEAT)], told={"agent.stalled": 1, "kill.held": 1}),
    dies("held-once", "mute, an operator held it for half an hour", 1800, [(0, BEAT)], told={"kill.held": 1}),
]
POLICIES = """
[[policy]]
match = { type = "watched" }
ladder = ["warn"]
[[policy]]
match = { tag = "slow" }
after_seconds = 600
"""


async def held(hours: Hours) -> None:
    """Two operators' holds, from the start."""
    for name, more in (("held", {}), ("held-once", {"for_seconds": 1800})):
        status, answer = await hours.ask("POST", "/v1/hold", {"targets": [name], "reason": "debugging", **more})
        assert status == 200, answer


SCENES = [
    scene(
        "an hour, shipped limits",
        LENGTH,
        [*BEATING, *WAITING, *TOOLS, *PROGRESS, *ENDS, *STARTS, *TIMES, *OTHERS],
        held,
        more=POLICIES,
        alike=False,
    )
]
