"""Every way to speak and to be silent, in one daemon at once; and the same with caps that are short."""

from dataclasses import replace
from typing import Any

from tests.verdicts.stage import Actor, scene
from tests.verdicts.table import EXPIRED, LINGERING, STALLED

SILENT = 7.0  # seconds of silence that must not harm one who lives: four, two looks, and some more
YEAR_2100, YEAR_1970 = 4_102_444_800, 100
QUIET = {"agent.late": 0}


def lives(name: str, situation: str, words: str, **rest: object) -> Actor:
    return Actor(name=name, situation=situation, words=words, **rest)  # type: ignore[arg-type]


def dies(name: str, situation: str, words: str, earliest: float, right: str = STALLED, **rest: object) -> Actor:
    """`earliest`: seconds from its first word until its time is up."""
    return Actor(name=name, situation=situation, words=words, earliest=earliest, right=right, **rest)  # type: ignore[arg-type]


GROWS = "append={rhythm}@{{directory}}/{name}"


def grows(name: str, kind: str, rhythm: str, then: str = "") -> dict[str, Any]:
    """Beats twice, then only its file grows: `kind` is what it was registered as, log or transcript."""
    words = f"beat=0.3/2 {GROWS.format(rhythm=rhythm, name=name)} {then}"
    return {"words": words, "body": {kind: f"{{directory}}/{name}"}}


HEALTHY = [
    lives("beats", "beats", "beat=0.5", by_run=True),
    lives("library", "beats by a library that connects once", "by=sdnotify beat=0.5"),
    lives("notify", "beats by systemd-notify", "by=systemd-notify beat=1"),
    lives("program", "beats by `agent-watchdog beat`", "by=beat beat=1", by_run=True),
    lives("file", "beats by a file", "touch=0.5/1000"),
    lives("file-1970", "beats by a file with stamps from 1970", f"touch=0.5/1000@{YEAR_1970}"),
    lives("file-2100", "beats by a file with stamps from 2100", f"touch=0.5/1000@{YEAR_2100}"),
    lives("lease", "on a lease", "lease=600"),
    lives("tool", "runs a declared tool", "say=WATCHDOG=1,X_AGENT_TOOL=make,X_AGENT_TOOL_LIMIT=600"),
    lives("extends", "asked for more time systemd's way", "say=WATCHDOG=1,EXTEND_TIMEOUT_USEC=600000000"),
    lives("own", "silent, has set its own limit", "say=WATCHDOG=1,WATCHDOG_USEC=600000000", silent=SILENT),
    lives("idle", "idle, silent", "beat=0.5/2 state=idle", silent=SILENT, told=QUIET),
    lives("idle-stopped", "idle, and stopped by a signal", "state=idle stop", silent=SILENT),
    lives("prompt", "at a permission prompt", "state=waiting", silent=SILENT, told={"agent.needs_human": 1}),
    lives(
        "prompt-beats",
        "at a permission prompt, a thread beats",
        "state=waiting for=1000",
        told={"agent.needs_human": 1},
    ),
    lives("blocked", "blocked", "state=blocked", silent=SILENT),
    lives("quiet", "never promised a beat", "sleep", silent=SILENT, told=QUIET),
    lives("quiet-stopped", "never promised a beat, stopped by a signal", "stop", silent=SILENT),
    lives("ready", "said READY=1 and nothing else", "say=READY=1", silent=SILENT),
    lives("busy", "C1: an undeclared tool uses a core's third", "busy=0.3", silent=SILENT, told={"agent.late": 1}),
    lives("writes", "silent, its transcript grows", **grows("writes", "transcript", "0.5"), silent=SILENT),
    lives("logs", "silent, its log grows", **grows("logs", "log", "0.5"), silent=SILENT),
    lives("parent", "silent while its child agent works", "nest=child", by_run=True, silent=SILENT),
    lives("becomes", "becomes another program and beats on", "beat=0.3/2 exec beat=0.5"),
    lives("half", "its first thread has ended, another beats", "half beat=0.5"),
]
STALLS = [
    dies("mute", "beats three times", "beat=0.3/3", 4.0),
    dies("mute-run", "beats three times, in `run`", "beat=0.3/3", 4.0, by_run=True),
    dies("alternates", "silent for 3 s four times, then for ever", "beat=3/4", 13.0),
    dies("deaf", "mute, and ignores TERM", "deaf beat=0.3/3", 4.0),
    dies(
        "deaf-family", "mute, with a deaf child in a session of its own", "grandchild deaf beat=0.3/3", 4.0, by_run=True
    ),
    dies("written", "its transcript grows no more", **grows("written", "transcript", "0.5/12"), earliest=8.0),
    dies("logged", "its log grows no more", **grows("logged", "log", "0.5/12"), earliest=8.0),
    dies("stopped", "stopped by a signal", "beat=0.3/3 stop", 4.0),
    dies("lease-over", "its lease of 2 s is over", "lease=2", 6.0),
    dies(
        "tool-over", "its tool declared with 3 s runs on", "say=WATCHDOG=1,X_AGENT_TOOL=make,X_AGENT_TOOL_LIMIT=3", 7.0
    ),
    dies("own-short", "silent for longer than its own limit", "say=WATCHDOG=1,WATCHDOG_USEC=1500000", 1.5),
    dies("file-mute", "its file is touched no more", "touch=0.5/6", 4.0),
    dies("file-mute-2100", "its file is touched no more, with a stamp from 2100", f"touch=0.5/6@{YEAR_2100}", 4.0),
    dies("finished", "said done, and its process stays", "beat=0.3/2 state=done", 2.0, LINGERING),
    dies("stopping", "said STOPPING=1, and its process stays", "say=WATCHDOG=1 say=STOPPING=1", 2.0, LINGERING),
    dies("ttl", "beats, its time to live is over", "beat=0.5", 4.0, EXPIRED, body={"ttl_seconds": 8}),
    dies("deadlocked", "a thread beats, the work stands", "progress=41 thread=0.2", 5.0),
    dies("becomes-mute", "becomes another program, which is mute", "beat=0.3/2 exec sleep", 4.0),
    dies("half-mute", "its first thread has ended, another falls silent", "half beat=0.3/3", 4.0),
    dies("worked-again", "at a prompt, works again, then mute", "state=waiting for=2 beat=0.3/3", 6.0),
]
CAPS = [
    dies("busy", "uses a core's third for longer than busy_limit", "busy=0.3", 7.0),
    dies("livelocked", "a thread beats, the work runs on the spot", "progress=41 thread=0.2 busy=0.3", 7.0),
    dies("parent", "silent for longer than busy_limit, its child agent works", "nest=child", 7.0, by_run=True),
    dies(
        "writes",
        "its transcript grows for longer than busy_limit",
        **grows("writes", "transcript", "0.5"),
        earliest=7.0,
    ),
    dies("logs", "its log grows for longer than busy_limit", **grows("logs", "log", "0.5"), earliest=7.0),
    dies("lease", "on a lease longer than wait_limit", "lease=600", 10.0),
    dies(
        "tool",
        "a tool declared with more than wait_limit",
        "say=WATCHDOG=1,X_AGENT_TOOL=a,X_AGENT_TOOL_LIMIT=600",
        10.0,
    ),
    dies("own", "its own limit is longer than wait_limit", "say=WATCHDOG=1,WATCHDOG_USEC=600000000", 6.0),
    lives("idle", "idle for longer than every limit", "state=idle", silent=11.0),
    lives("prompt", "at a prompt for longer than every limit", "state=waiting", silent=11.0),
]
IN_PANES = [
    lives("scrolls", "in a pane, silent, and writes words", "print=0.3", silent=SILENT),
    dies("spins", "in a pane, silent, with a spinner and a timer alone", "draw", 4.0),
    dies("scrolled", "in a pane, silent, and writes no more", "print=0.3/20", 7.0),
    dies("mute", "in a pane, silent, and writes nothing", "sleep", 4.0),
]
CAPPED = [dies("scrolls", "in a pane, writes words for longer than busy_limit", "print=0.3", 7.0)]


def seated(rows: list[Actor]) -> list[Actor]:
    """Each in a tmux pane of its own; it beats once, and is not heard of again."""
    return [replace(row, words=f"beat=0.3/1 {row.words}", in_pane=True) for row in rows]


SCENES = [
    scene(
        "everyday",
        [*HEALTHY, *STALLS],
        tables={"stall": {"prompt_limit_seconds": 2, "linger_seconds": 2, "progress_limit_seconds": 5}},
        alike=False,
    ),
    scene(
        "short caps",
        CAPS,
        tables={"stall": {"busy_limit_seconds": 3, "wait_limit_seconds": 6, "progress_limit_seconds": 4}},
    ),
    scene("panes", seated(IN_PANES)),
    scene("panes, short caps", seated(CAPPED), tables={"stall": {"busy_limit_seconds": 3}}),
]
