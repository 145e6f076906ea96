"""Steps that several programs have, each a story with one agent, `a`, and what is right in it."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from tests.vendors.model import Call, Refuse, Say, Scripts, Stall
from tests.vendors.stage import AFTER, PAUSE, START, Broken, Stage, dead, right, words_of
from tests.world import alive, make_repository

SLEEPS = 8 * [Call("shell", "sleep 5")]  # together twice what is too long, each less
LATE = 35_000  # milliseconds
SCRIPTS: Scripts = {
    "hello": [Say("Hello.")],
    "shell": [Call("shell", "sleep 4; echo slept"), Say("Slept.")],
    "long": [*SLEEPS, Say("Done.")],
    "hang": [Call("shell", "sleep 600"), Say("Never.")],
    "hang-codex": [Call("shell", "sleep 600", {"yield_time_ms": 600_000}), Say("Never.")],
    # In a loop: Claude Code refuses one long sleep, before any hook.
    "limit": [
        Call("shell", f"for i in 1 2 3 4; do sleep {AFTER / 4 + 2:.0f}; done", {"timeout": 90_000}),
        Say("Slept long."),
    ],
    # Longer than silence may last, within its limit; that is over before a person says yes.
    "limit-late": [
        Call("shell", f"for i in 1 2 3 4; do sleep {AFTER / 4 + 2:.0f}; done", {"timeout": LATE}),
        Say("Built."),
    ],
    "gate": [Call("shell", "touch made.txt; sleep 600"), Say("Never.")],
    "yield": [Call("shell", "sleep 30"), Say("It runs on.")],
    "slow": [Say("word", 60)],
    "slow-then": [Say("word", 20)],
    "stall": [Stall()],
    "mute": [Stall(mute=True)],
    "limited": [Refuse(429, 2, Say("At last."), retry_after=3)],
    "overloaded": [Refuse(529, 2, Say("At last."))],
    "refused": [Refuse(400, 1000, Say("Never."))],
    "write": [Call("write", "made.txt"), Say("Written.")],
    "ask": [Call("ask", "Which way?"), Say("Thank you.")],
    "plan": [Call("ExitPlanMode", more={"plan": "1. Begin.\n2. End."}), Say("Planned.")],
    "nap-claude": [Call("mcp__slow__nap", more={"seconds": 600}), Say("Never.")],
    "nap-codex": [Call("nap", more={"seconds": 600}), Say("Never.")],
    "nap-gemini": [Call("mcp_slow_nap", more={"seconds": 600}), Say("Never.")],
    "nap-opencode": [Call("slow_nap", more={"seconds": 600}), Say("Never.")],
    "background": [Call("shell", "sleep 8", {"run_in_background": True}), Say("It runs beside.")],
    "sub": [Call("agent", "play:long"), Say("It is begun.")],
    "sub-stall": [Call("agent", "play:stall"), Say("It is begun.")],
    "sub-write": [Call("agent", "play:write-then-long"), Say("It is begun.")],
    "write-then-long": [Call("write", "made.txt"), *SLEEPS, Say("Done.")],
    "escalated": [
        Call("shell", "touch made.txt", {"sandbox_permissions": "require_escalated", "justification": "May I?"}),
        Say("Touched."),
    ],
}
# For stories about a start; else a machine under load has more time for it.
STARTING = {"stall": {"start_limit_seconds": START}}
# How long one that rests keeps its promise, while its subagents go on.
RESTING = {"stall": {"wait_limit_seconds": 1.5 * AFTER}}
HEADLESS = {
    "claude": ("claude", "-p", "{}", "--allowedTools", "Bash,Agent,mcp__slow__nap"),
    "codex": ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-hook-trust", "{}"),
    "gemini": ("gemini", "--yolo", "-p", "{}"),
    "opencode": ("opencode", "run", "{}"),
}
PANE = {
    "claude": ("claude", "--permission-mode", "manual"),
    "codex": ("codex", "--no-daemon", "--dangerously-bypass-hook-trust"),
    "gemini": ("gemini",),
    "opencode": ("opencode",),
}
READY = {
    "claude": r"manual mode on(?! · esc)",
    "codex": "Ask Codex to do anything",
    "gemini": "Type your message",
    "opencode": r"ctrl\+p commands",
}
# What it shows while a turn goes on.
BUSY = r"esc (?:to interrupt|to cancel|interrupt|again)"
# What makes the program ask whether it may, the key that says yes, and what its dialog shows.
ASKS = {"claude": "write", "codex": "escalated", "gemini": "write", "opencode": "write"}
YES = {"claude": "1", "codex": "y", "gemini": "1", "opencode": "Enter"}
DIALOGS = {
    "claude": "Do you want to create",
    "codex": "Would you like to run the following command",
    "gemini": "Apply this change",
    "opencode": "Permission required",
}
# What hangs once a person has said yes; what its dialog shows, and the key that says yes. Codex goes on without a
# command, Claude Code refuses it, and opencode ends it, and tells of the yes.
GATES = {"claude": "nap-claude", "codex": "nap-codex", "gemini": "gate"}
CALLS = {
    "claude": ("Do you want to proceed", "1"),
    "codex": ("Allow the slow MCP server", "Enter"),
    "gemini": ("Allow execution of", "1"),
    "opencode": (DIALOGS["opencode"], "Enter"),
}


def headless(stage: Stage, script: str, *options: str) -> None:
    """One prompt, through `run`, with hooks; the model has heard of it."""
    stage.install_hooks()
    command = [word.format(f"please play:{script}") for word in HEADLESS[stage.vendor]]
    stage.run("a", *command, options=options)
    stage.until(lambda: stage.model.played(script), f"the model is asked to play {script}")


def pane(
    stage: Stage,
    *run: str,
    hooks: bool = True,
    name: str = "a",
    command: tuple[str, ...] = (),
    cwd: Path | None = None,
) -> None:
    """In a tmux pane, through `run`, at its prompt."""
    if hooks:
        stage.install_hooks()
    stage.pane(name, *(command or PANE[stage.vendor]), cwd=cwd, run=run)
    stage.until_screen(name, READY[stage.vendor])


def at_rest(stage: Stage, *run: str) -> None:
    """In a pane, after one turn."""
    pane(stage, *run)
    stage.prompt("a", "hello")
    stage.until_screen("a", r"Hello\.")
    stage.until_state("a", "idle")


# -- hooks, and what they tell


def hooks_are_installed(stage: Stage) -> str:
    """And removed again, byte for byte."""
    home = stage.world.home
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    stage.world.cli("install-hooks", stage.vendor, "--dry-run")
    dry = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    right(dry == before, "--dry-run wrote a file")
    stage.world.cli("install-hooks", stage.vendor)
    text = stage.settings().read_text()
    right("agent-watchdog" in text, "nothing of ours stands in its settings")
    stage.world.cli("install-hooks", stage.vendor)
    right(stage.settings().read_text() == text, "the second installation changed them again")
    stage.world.cli("install-hooks", stage.vendor, "--uninstall")
    after = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    differs = sorted(str(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    right(not differs, f"these differ: {differs}")
    return "installed, and removed byte for byte"


def events(*names: str, tool: str) -> Callable[[Stage], str]:
    """A turn with a tool: these hooks come, the daemon knows what it does, and that it is over."""

    def play(stage: Stage) -> str:
        headless(stage, "shell")
        stage.until_agent("a", f"at work in {tool}", lambda a: a["state"] == "working" and a["tool"] == tool)
        stage.ended("a", "completed")
        came = [event["hook_event_name"] for event in stage.events()]
        for name in names:
            right(name in came, f"no {name}: {came}")
        stage.spared("a")
        right(len(stage.agents()) == 1, f"{len(stage.agents())} agents for one")
        return f"working, {tool}, then completed; {len(came)} events"

    return play


def works(script: str, *options: str) -> Callable[[Stage], str]:
    """A turn that takes longer than silence may last: it lives, and ends by itself."""

    def play(stage: Stage) -> str:
        headless(stage, script, *options)
        began = time.monotonic()
        stage.ends_by_itself("a", 150)
        if (took := time.monotonic() - began) < AFTER:
            raise Broken(f"a story of {took:.0f} s shows nothing")
        return "lived, and ended by itself"

    return play


def retries(script: str, *options: str) -> Callable[[Stage], str]:
    """Its provider refuses twice: it waits for nobody, lives, and ends by itself."""

    def play(stage: Stage) -> str:
        headless(stage, script, *options)
        states = stage.ends_by_itself("a", 150)
        if (refused := stage.model.refused[script, 0]) < 3:
            raise Broken(f"it asked {refused} times")
        right("waiting" not in states, f"told as one that waits: {states}")
        right(not stage.told("agent.needs_human", "a"), "a person was called")
        return "lived, and ended by itself"

    return play


def stalls(script: str) -> Callable[[Stage], str]:
    """It stalls, is found, and is ended with all its processes."""

    def play(stage: Stage) -> str:
        headless(stage, script)
        came = stage.stalls("a")
        dead(stage.tree())
        return came

    return play


def subagent_stalls_behind_a_prompt(stage: Stage) -> str:
    """The main thread has ended its turn meanwhile."""
    pane(stage)
    stage.prompt("a", "sub-stall")
    stage.until(lambda: stage.model.played("stall"), "the subagent asks the model")
    return stage.stalls("a")


def subagent_works_behind_a_prompt(stage: Stage) -> str:
    """Longer than silence may last."""
    pane(stage)
    stage.prompt("a", "sub")
    stage.until(lambda: stage.model.played("long"), "the subagent asks the model")
    stage.lives("a", 120, lambda: stage.model.played("long") > len(SLEEPS))
    return stage.lives("a", AFTER)


def stalls_in_a_tool(stage: Stage) -> str:
    """An MCP tool that never answers."""
    nap(stage)
    came = stage.stalls("a")
    dead(stage.tree())
    return came


def nap(stage: Stage) -> None:
    """At work in an MCP tool for ever."""
    stage.serve_nap()
    headless(stage, f"nap-{stage.vendor}")
    stage.until_agent("a", "in the tool", lambda agent: "nap" in (agent["tool"] or ""))


def kill(stage: Stage) -> str:
    """The whole tree: the program, its MCP server, and that one's child."""
    nap(stage)
    tree = stage.tree()
    done = stage.world.cli("kill", "a", check=False)
    right(done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}")
    dead(tree, 5)
    dead(stage.tree(), 5)
    stage.ended("a", "killed")
    return f"{len(tree)} processes ended"


# -- in a pane


def idle(stage: Stage) -> str:
    at_rest(stage)
    return stage.lives("a", AFTER + 10)


def permission(stage: Stage) -> str:
    """Asked, reported, answered, over."""
    pane(stage)
    asked(stage)
    stage.until_state("a", "waiting")
    stage.until_told("agent.needs_human", "a")
    stage.lives("a", AFTER)
    stage.keys("a", YES[stage.vendor])
    stage.until(lambda: (stage.world.work / "made.txt").exists(), "it is written")
    stage.until_state("a", "idle")
    stage.until_told("agent.human_answered", "a")
    return "waiting, reported, answered, idle"


def asked(stage: Stage) -> None:
    """The program asks whether it may."""
    stage.prompt("a", ASKS[stage.vendor])
    stage.until_screen("a", DIALOGS[stage.vendor])


def permission_without_hooks(stage: Stage) -> str:
    """Its screen alone tells of it."""
    pane(stage, hooks=False)
    asked(stage)
    stage.until_told("agent.needs_human", "a")
    stage.keys("a", YES[stage.vendor])
    stage.until_told("agent.human_answered", "a")
    stage.lives("a", 0)
    return "reported by its screen, then answered"


def question(seen: str, *keys: str) -> Callable[[Stage], str]:
    """The model asks the user."""

    def play(stage: Stage) -> str:
        pane(stage)
        stage.prompt("a", "ask")
        stage.until_screen("a", seen)
        stage.until_state("a", "waiting")
        stage.until_told("agent.needs_human", "a")
        stage.lives("a", AFTER)
        for key in keys:
            stage.keys("a", key)
        stage.until_screen("a", r"Thank you\.")
        stage.until_state("a", "idle")
        return "waiting, answered, idle"

    return play


def escape(script: str, again: str = "", *, tool: bool = False) -> Callable[[Stage], str]:
    """The user breaks a turn off, and leaves it at its prompt; `again`: what it shows when Esc is to come twice.

    `tool`: in the middle of a shell command, for which some programs have another last hook, or none.
    """

    def play(stage: Stage) -> str:
        pane(stage, command=(*PANE[stage.vendor], *FREE[stage.vendor]))
        stage.prompt("a", script)
        stage.until_agent("a", "at work", lambda agent: agent["state"] == "working" and (agent["tool"] or not tool))
        stage.until_screen("a", BUSY)
        stage.keys("a", "Escape")
        if again:
            stage.until_screen("a", again)
            stage.keys("a", "Escape")
        stage.until_gone("a", BUSY)
        stage.until_state("a", "idle")
        return stage.lives("a", AFTER + 20)

    return play


def escape_at_a_dialog(stage: Stage) -> str:
    pane(stage)
    asked(stage)
    stage.until_state("a", "waiting")
    stage.keys("a", "Escape")
    stage.until_screen("a", READY[stage.vendor])
    stage.until_state("a", "idle")
    return stage.lives("a", AFTER)


def gate(stage: Stage, script: str) -> None:
    """The program asks whether it may run a command, or a tool."""
    if stage.vendor == "opencode":
        path = stage.world.home / ".config/opencode/opencode.json"
        told = json.loads(path.read_text())
        path.write_text(json.dumps({**told, "permission": {"bash": "ask"}}))
    if "nap" in script:
        stage.serve_nap()
    if stage.vendor == "codex":
        settings = stage.world.home / ".codex/config.toml"
        settings.write_text(settings.read_text().replace('mode = "approve"', 'mode = "prompt"'))
    pane(stage)
    stage.prompt("a", script)
    stage.until_screen("a", CALLS[stage.vendor][0])
    stage.until_state("a", "waiting")


def stalls_behind_a_dialog(stage: Stage) -> str:
    """A person says yes, and what that allows hangs."""
    gate(stage, GATES[stage.vendor])
    dialog, yes = CALLS[stage.vendor]
    stage.answer("a", yes, dialog)
    return stage.stalls("a")


def limit_behind_a_dialog(stage: Stage) -> str:
    """A person says yes late, and the command takes its time, within the limit that was declared for it."""
    gate(stage, "limit-late")
    stage.lives("a", LATE / 1000 + 5)
    stage.keys("a", CALLS[stage.vendor][1])
    began = time.monotonic()
    stage.lives("a", 120, lambda: stage.model.played("limit-late") > 1)
    if (took := time.monotonic() - began) < AFTER:
        raise Broken(f"a story of {took:.0f} s shows nothing")
    stage.until_state("a", "idle")
    return stage.lives("a", 3)


def failed_turn(within: float) -> Callable[[Stage], str]:
    """The provider refuses: nothing more comes of that turn, and the program is at its prompt, without limit."""

    def play(stage: Stage) -> str:
        pane(stage, "--stall-after", f"{within + AFTER:.0f}s")
        stage.prompt("a", "refused")
        stage.until_agent("a", "at rest, or waiting", lambda agent: agent["state"] in ("waiting", "idle"), within)
        return stage.lives("a", within + 2 * AFTER)

    return play


def first_prompt_waits(stage: Stage) -> str:
    """Nobody has typed yet: that is no failed start."""
    pane(stage, "--stall-after", f"{AFTER:.0f}s")
    return stage.lives("a", START + 12)


NUDGES = f"""
[[policy]]
match = {{ tag = "nudged" }}
start_limit_seconds = 6
after_seconds = 6
ladder = ["nudge", "kill"]
nudge_pause_seconds = {2 * AFTER}
"""


def dialog(seen: str, *, nudged: bool, prepare: Callable[[Stage], Path | None]) -> Callable[[Stage], str]:
    """One of its first screens: nobody answers it but a person; it is told, and nobody is ended for it."""

    def play(stage: Stage) -> str:
        stage.install_hooks()
        cwd = prepare(stage)
        options = ("--stall-after", "6s", *(("--tag", "nudged") if nudged else ()))
        stage.pane("a", *PANE[stage.vendor], cwd=cwd, run=options)
        stage.until_screen("a", seen)
        stage.until_told("agent.needs_human", "a")
        if nudged:
            stage.lives("a", AFTER)
            right(re.search(seen, stage.screen("a")), f"the dialog was answered: {stage.screen('a')[-200:]}")
            right(not stage.told("agent.nudged", "a"), "it was typed at")
            return "told, and nobody typed"
        return stage.lives("a", START)

    return play


def fresh_directory(stage: Stage) -> Path:
    """A folder that the user has said nothing of; outside of any that is trusted."""
    stage.world.environ.pop("GEMINI_CLI_TRUST_WORKSPACE", None)
    place = stage.world.dir / "fresh"
    place.mkdir()
    make_repository(place)  # Codex asks of repositories
    stage.world.own(place)
    return place


# -- stop, and what follows


def stop_at_rest(stage: Stage) -> str:
    at_rest(stage)
    began = time.monotonic()
    done = stage.world.cli("stop", "a", check=False)
    right(done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}")
    stage.ended("a", "stopped")
    dead(stage.tree(), 5)
    typed = [e["why"] for e in stage.told("stop.keys", "a")]
    right(typed and not typed[0].startswith("not typed"), f"its keys: {typed}")
    right(not [e for e in stage.told("kill.signal_sent", "a") if "SIGKILL" in e["why"]], "it needed KILL")
    return f"its keys typed, stopped after {time.monotonic() - began:.0f} s"


def stop_at_work(stage: Stage) -> str:
    """After its present tool call, in its own words, long before the pause that it is given is over."""
    pane(stage, command=(*PANE[stage.vendor], *FREE[stage.vendor]))
    stage.prompt("a", "long")
    stage.until_agent("a", "in a tool", lambda agent: agent["tool"])
    ran = stage.tools_run()
    began = time.monotonic()
    done = stage.world.cli("stop", "a", check=False)
    took = time.monotonic() - began
    right(done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}")
    stage.ended("a", "stopped")
    right(stage.tools_run() <= ran + 1, "it went on with its tools")
    right(took < PAUSE, f"stopped, but after {took:.0f} s")
    return f"stopped after {took:.0f} s"


# What lets a program run shell commands unasked.
FREE = {
    "claude": ("--allowedTools", "Bash"),
    "codex": (),
    "gemini": ("--yolo",),
    "opencode": (),
}


def draft(*, hooks: bool) -> Callable[[Stage], str]:
    """Half of a prompt stands there when `stop` comes: it is not sent."""

    def play(stage: Stage) -> str:
        pane(stage, "--type", stage.vendor, hooks=hooks)
        stage.prompt("a", "hello")
        stage.until_screen("a", r"Hello\.")
        stage.write("a", "please play:write but")
        done = stage.world.cli("stop", "a", check=False)
        stage.ended("a", "stopped")
        right(not stage.model.played("write"), "the draft was sent")
        right(done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}")
        right(not [e for e in stage.told("kill.signal_sent", "a") if "SIGKILL" in e["why"]], "it needed KILL")
        return "stopped, and the draft was not sent"

    return play


def resume(stage: Stage) -> str:
    """The command that `why` tells takes the conversation up again."""
    at_rest(stage)
    session = stage.events()[0]["session_id"]
    stage.world.cli("stop", "a", check=False)
    stage.ended("a", "stopped")
    story = stage.world.cli("why", "a").stdout
    found = re.search(rf"{stage.vendor} \S*resume \S+", story)
    right(found, f"no command to go on: {story[-300:]}")
    assert found is not None
    words = found[0].rstrip(".)").split()
    stage.pane("b", *words, *PANE[stage.vendor][1:])
    stage.until_screen("b", READY[stage.vendor])
    if stage.vendor == "codex":  # it tells of a session with its first prompt
        stage.prompt("b", "shell")
    stage.until_agent("b", "known", lambda agent: agent["state"] is not None)
    right(stage.events()[-1]["session_id"] == session, "another conversation")
    return stage.lives("b", 3)


# -- Claude Code


def compaction(stage: Stage) -> str:
    """Asked for at rest: it rests again, and nothing of that is a stall."""
    at_rest(stage)
    stage.write("a", "/compact")
    stage.keys("a", "Enter")
    stage.until_event("SessionStart", source="compact")
    stage.until_state("a", "idle")
    return stage.lives("a", AFTER + 5)


def background_command(stage: Stage) -> str:
    """The turn ends before its command does; the end of that begins another turn by itself."""
    pane(stage, command=(*PANE["claude"], *FREE["claude"]))
    stage.prompt("a", "background")
    stage.until_event("Stop")
    stage.until_agent("a", "idle, with its background task", lambda agent: "background" in (agent["note"] or ""))
    stage.until_event("Stop", 2)
    stage.until_agent("a", "idle, without", lambda a: a["state"] == "idle" and not a["note"])
    return stage.lives("a", AFTER)


def subagent_asks(stage: Stage) -> str:
    """A permission for a subagent: answered, it works on, and waits for nobody."""
    pane(stage, command=(*PANE["claude"], *FREE["claude"]))
    stage.prompt("a", "sub-write")
    stage.until_screen("a", DIALOGS["claude"])
    stage.until_state("a", "waiting")
    stage.keys("a", "1")
    stage.until(lambda: (stage.world.work / "made.txt").exists(), "it is written")
    stage.until_agent("a", "at work again", lambda agent: agent["state"] != "waiting", 12)
    return stage.lives("a", 3)


def background_session(stage: Stage) -> str:
    """`claude --bg` hands its session to a service of the user's, and ends: the session goes on."""
    stage.install_hooks()
    stage.run("a", "claude", "--bg", "please play:slow-then")
    stage.until(lambda: stage.model.played("slow-then"), "the model is asked")
    stage.ended("a", "completed")
    stage.tidied()
    if stage.events("Stop"):
        raise Broken("its turn was over before it could be ended")
    service = [pid for pid in stage.tree() if b"bg-pty-host" in words_of(pid)]
    right(service, "the session was ended with the command that began it")
    stage.until_event("Stop")
    return "the session came to its end"


# -- Codex' shared app-server

SHARED = ("codex",)


def command_beyond_its_yield(stage: Stage) -> str:
    """Its call is answered while it still runs, and no hook tells that it ends: with the turn the tool is over."""
    pane(stage)
    stage.prompt("a", "yield")
    stage.until_event("Stop")
    if stage.tools_run():
        raise Broken("its end was told")
    stage.until_agent("a", "idle, without its tool", lambda agent: agent["state"] == "idle" and not agent["tool"])
    return stage.lives("a", AFTER + 10)


def trust_hooks(stage: Stage) -> None:
    """As a user does it, once for all sessions."""
    stage.install_hooks()
    stage.pane("trust", "codex", "--no-daemon", run=None)
    stage.until_screen("trust", "Hooks need review")
    stage.keys("trust", "2", "Enter")
    stage.until_screen("trust", READY["codex"])
    stage.keys("trust", "C-c", "C-c")


def command_of(stage: Stage) -> list[int]:
    """The processes of the command that hangs, once it runs itself."""
    found = {pid: words_of(pid).replace(b"\0", b" ").strip() for pid in stage.tree()}
    pids = [pid for pid, words in found.items() if b"sleep 600" in words]
    return pids if any(found[pid] == b"sleep 600" for pid in pids) else []


def shared(stage: Stage) -> list[int]:
    """Two panes, `a` whose `run` started the server, and `b`, elsewhere, whose command runs; its processes."""
    pane(stage, hooks=False, command=SHARED)
    stage.prompt("a", "hello")
    pane(stage, hooks=False, command=SHARED, name="b", cwd=stage.world.beside)
    stage.prompt("b", "hang-codex")
    return list(stage.until(lambda: command_of(stage), "the command runs"))


def first_leaves(stage: Stage) -> str:
    """The first agent ends by itself, and nothing of the second one does."""
    running = shared(stage)
    stage.keys("a", "C-c", "C-c")
    stage.ended("a", "completed", "failed")  # as it pleases: on a busy machine its status is not zero
    stage.spared("a")
    stage.tidied()
    right(all(alive(pid) for pid in running), "the command of another agent was ended with it")
    right("econnect" not in stage.screen("b"), "the server of another agent was ended with it")
    stage.lives("b", 3)
    return "the other one works on"


def second_is_killed(*, hooks: bool) -> Callable[[Stage], str]:
    """Its command is ended with it, and the first one lives."""

    def play(stage: Stage) -> str:
        if hooks:
            trust_hooks(stage)
        running = shared(stage)
        done = stage.world.cli("kill", "b", check=False)
        right(done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}")
        dead(running, 5)
        stage.lives("a", 3)
        return f"ended with it: {len(running)} processes"

    return play


def one_hangs_behind_another(stage: Stage) -> str:
    """Two sessions of one server: the one that hangs is found while the other works."""
    trust_hooks(stage)
    for name, script in (("a", "stall"), ("b", "long")):
        pane(stage, hooks=False, command=SHARED, name=name)
        stage.prompt(name, script)
    came = stage.stalls("a")
    stage.lives("b", 5)
    return came


def shared_session_has_started(stage: Stage) -> str:
    """Its hooks run in the server: all the same they are its own."""
    trust_hooks(stage)
    pane(stage, "--stall-after", f"{AFTER:.0f}s", hooks=False, command=SHARED)
    stage.prompt("a", "hello")
    return stage.lives("a", START + 12)


# -- opencode


def words_of_run(stage: Stage) -> str:
    """Its hooks promise at once: `run` says that silence counts from then on, and it does."""
    headless(stage, "long")
    stage.until_agent("a", "promised", lambda agent: agent["promised"] and agent["after_seconds"] == AFTER)
    said = [line for line in stage.output("a").splitlines() if "silence" in line]
    right(len(said) == 1 and "killed for silence before its first beat" in said[0], f"`run` says {said}")
    return "killed for silence before its first beat"


def note_after_a_retry(stage: Stage) -> str:
    """`tries again` is over when it got its answer."""
    pane(stage)
    stage.prompt("a", "limited")
    stage.until_state("a", "blocked")
    stage.until_screen("a", "At last")
    stage.until_state("a", "idle")
    note = stage.agent("a")["note"] or ""
    right("again" not in note, f"its note stays: {note}")
    return "blocked, then idle"


# -- fake


def a_script_of_its_name(stage: Stage) -> str:
    """A shell script that is called like the program and calls the hooks."""
    script = stage.world.work / stage.vendor
    event = '{"hook_event_name":"UserPromptSubmit","session_id":"s"}'
    beat = f"printf '%s' '{event}' | agent-watchdog beat --from {stage.vendor}"
    script.write_text(f"#!/bin/sh\nfor i in $(seq 100); do {beat}; sleep 2; done\n")
    script.chmod(0o755)
    stage.run("a", str(script), options=("--stall-after", f"{AFTER:.0f}s"))
    stage.until_state("a", "working")
    return stage.lives("a", START + 10)
