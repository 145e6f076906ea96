"""One row's stage: a daemon, a model that plays, and one vendor's program, all as a user with a HOME of its own.

As root the user is `nobody`; else it is who runs the tests. The daemon is that user's own.
"""

import http.client
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.vendors.model import Model, Scripts
from tests.vendors.programs import AS_USER, Version
from tests.world import BIN, World, alive, pids_with, wait_for
from watchdog.core.agent import ENDED

# Seconds of silence that are too long. The hooks of a working program come every few; on two cores with a load of
# twenty, opencode has taken twelve between a prompt and what came of it.
AFTER = 20.0
START = 40.0  # and until the first word, in stories that are about it: a busy machine takes twenty for Gemini's screen
PROMPT = 6.0  # and before a question is told
PAUSE = 60.0  # and before one that is asked to stop is ended
RECORD = os.environ.get("RECORD") == "1"
RECORDED = Path(__file__).parent / "recorded"
_KEY = "played-key-0123456789abcdefghijklmnopqrstuvwxyz"
# Seconds for the next screen, event or word, where its time is not the point. On a busy machine opencode takes sixty,
# and looks at a pane that take longer than two are given up.
PATIENCE = 120.0
AGAIN = 10.0  # seconds after which a person presses a key once more


class Wrong(AssertionError):
    """The daemon did otherwise than is right: a kill, a stall missed, a word that is not true."""


class Broken(Exception):
    """The story could not be told: the program, or its screen, is not as the row expects."""


def right(holds: object, what: str) -> None:
    """The daemon is right where this holds. Raises Wrong."""
    if not holds:
        raise Wrong(what)


def words_of(pid: int) -> bytes:
    """The command line of a process; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class VendorWorld(World):
    """The world of one unprivileged user."""

    def __init__(self, directory: Path, version: Version, model: Model, **tables: Any) -> None:
        self.version, self.model = version, model
        self.prefix = AS_USER
        super().__init__(directory, **tables)
        self.home, self.work, self.beside = directory / "h", directory / "w", directory / "b"
        self.kept = directory / "k"
        for made in (self.home, self.work, self.beside, self.kept):
            made.mkdir(mode=0o755)
        self.environ = {
            "PATH": f"{version.path}:{BIN}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "USER": pwd.getpwuid(_uid()).pw_name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "WORLD": str(directory),
            "AGENT_WATCHDOG_SOCKET": self.socket,
            **environment(version.vendor, model.url),
        }
        configure(version.vendor, self.home, model.url, (self.work, self.beside))
        self.own(directory)

    def configure(self, **tables: Mapping[str, Any]) -> None:
        """Limits of seconds, and no ladder but the kill also for those that only a hook told of."""
        kinds = "\n".join(
            f'[[policy]]\nmatch = {{ type = "{kind}" }}\nafter_seconds = {AFTER}\n'
            for kind in ("claude", "codex", "gemini", "opencode")
        )
        kill = {"grace_seconds": 2, "stop_pause_seconds": PAUSE, "max_per_minute": 1000}
        usual: dict[str, Mapping[str, Any]] = {
            "sweep": {"interval_seconds": 0.5},
            "stall": {
                "after_seconds": AFTER,
                "start_limit_seconds": 3 * START,
                "busy_limit_seconds": 10,
                "prompt_limit_seconds": PROMPT,
            },
            "kill": kill,
            "log": {"level": "debug"},
        }
        for table, keys in tables.items():
            usual[table] = {**usual.get(table, {}), **keys}
        super().configure(**usual)
        with self.config.open("a") as config:
            config.write(kinds)

    def own(self, path: Path) -> None:
        """The user's, with all that is in it."""
        if self.prefix:
            for at in (path, *path.rglob("*")):
                if not at.is_symlink():
                    os.chown(at, 65534, 65534)

    def as_user(self, *command: str, check: bool = False, seconds: float = 100) -> subprocess.CompletedProcess[str]:
        """One command of the user, in its work directory, with its output."""
        done = subprocess.run(
            [*self.prefix, *command],
            env=self.environ,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode:
            raise Broken(f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def ask(self, method: str, path: str, body: object | None = None) -> tuple[int, dict[str, Any]]:
        """By a client that trusts a socket of another user's, as ours does not."""
        connection = http.client.HTTPConnection("localhost", timeout=30)
        connection.sock = socket.socket(socket.AF_UNIX)
        with closing(connection):
            connection.sock.connect(self.socket)
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def left(self) -> list[int]:
        """Who has this world in its environment, or its directory among its words: programs clean what they pass on."""
        here = str(self.dir).encode()
        named = [int(name) for name in os.listdir("/proc") if name.isdigit() and here in words_of(int(name))]
        return sorted({*named, *pids_with("WORLD", str(self.dir))})

    def close(self) -> None:
        super().close()
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def cli(self, *words: str, check: bool = True, **environ: str) -> subprocess.CompletedProcess[str]:
        return self.as_user(str(BIN / "agent-watchdog"), *words, check=check)


class Stage:
    """What a row's story is told with."""

    def __init__(self, world: VendorWorld) -> None:
        self.world = world
        self.vendor = world.version.vendor
        self.model = world.model

    # -- hooks

    def install_hooks(self) -> None:
        """As a user does it; and each event that comes is kept."""
        self.world.cli("install-hooks", self.vendor)
        path = self.settings()
        ours = re.compile(rf"[^\"]*agent-watchdog'? beat --from {self.vendor}(?=\")")
        script = Path(__file__).with_name("hook.sh")
        command = shlex.join(("/bin/sh", str(script), self.vendor, str(self.world.kept), str(BIN / "agent-watchdog")))
        path.write_text(ours.sub(command, path.read_text()))
        if RECORD and self.vendor == "claude":
            self._record_more(path, shlex.join(("/bin/sh", str(script), self.vendor, str(self.world.kept))))

    def _record_more(self, path: Path, command: str) -> None:
        """Events that install-hooks does not name, since not every version knows them: kept, and not told."""
        settings = json.loads(path.read_text())
        for event in ("PermissionRequest", "PostToolUseFailure", "StopFailure", "SubagentStart", "PostCompact"):
            settings["hooks"][event] = [{"hooks": [{"type": "command", "command": command}]}]
        path.write_text(json.dumps(settings))

    def settings(self) -> Path:
        """The file that install-hooks writes."""
        below = {
            "claude": ".claude/settings.json",
            "codex": ".codex/hooks.json",
            "gemini": ".gemini/settings.json",
            "opencode": ".config/opencode/plugin/agent-watchdog.js",
        }
        found = self.world.home / below[self.vendor]
        return found if found.exists() else next(self.world.home.rglob("agent-watchdog*.js"))

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """What the hooks were given so far, in order; of one name, or all."""
        found = [json.loads(path.read_text()) for path in sorted(self.world.kept.glob("*.json"))]
        return [event for event in found if name in ("", event.get("hook_event_name"))]

    def until_event(self, name: str, count: int = 1, seconds: float = PATIENCE, **fields: Any) -> dict[str, Any]:
        """The `count`th such event. Raises Broken."""

        def look() -> dict[str, Any] | None:
            found = [e for e in self.events(name) if all(e.get(key) == value for key, value in fields.items())]
            return found[count - 1] if len(found) >= count else None

        names = [event.get("hook_event_name") for event in self.events()]
        found: dict[str, Any] = self.until(look, f"event {name} {fields}; came: {names}", seconds)
        return found

    def record(self, step: str) -> None:
        """Keep what the hooks were given beside the tests, without what is ours alone; only where RECORD=1."""
        events = self.events()
        if not RECORD or not events:
            return
        place = RECORDED / f"{self.vendor}-{self.world.version.number}"
        place.mkdir(parents=True, exist_ok=True)
        here = str(self.world.dir)
        dashed = re.sub(r"[^0-9A-Za-z]", "-", here)  # as Claude Code calls its directory for it
        lines = redacted(events, {here: "/x", dashed: "-x", f"claude-{_uid()}": "claude-UID"})
        (place / f"{step.replace(' ', '_')}.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def serve_nap(self) -> None:
        """The MCP server `slow`, in the program's own configuration."""
        serve_nap(self.vendor, self.world.home, self.world.dir)

    # -- programs

    def until(self, look: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """The first true answer. Raises Broken: the story does not go on; Wrong: the daemon has ended its agent."""
        try:
            return wait_for(look, what, seconds)
        except AssertionError as error:
            for agent in self.agents():
                self.spared(agent["name"])
            log = [line for line in self.world.log.read_text().splitlines() if '"sweep.finished"' not in line]
            raise Broken("\n".join([str(error), self.last_screens(), *log[-12:]])) from None

    def run(self, name: str, *command: str, options: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """Headless, through `run`."""
        with (self.world.dir / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                [*self.world.prefix, str(BIN / "agent-watchdog"), "run", "--name", name, *options, "--", *command],
                env=self.world.environ,
                cwd=self.world.work,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.world.started.append(process)
        return process

    def output(self, name: str) -> str:
        return (self.world.dir / f"{name}.out").read_text(errors="replace")

    def _tmux(self, *words: str, check: bool = True) -> str:
        socket = str(self.world.dir / "tmux")
        return self.world.as_user("tmux", "-S", socket, "-f", "/dev/null", *words, check=check).stdout

    def pane(self, name: str, *command: str, cwd: Path | None = None, run: tuple[str, ...] | None = ()) -> None:
        """In a tmux pane; through `run` with these options, or (None) without it."""
        words = command if run is None else ("agent-watchdog", "run", "--name", name, *run, "--", *command)
        where = str(cwd or self.world.work)
        self._tmux("new-session", "-d", "-s", name, "-x", "130", "-y", "45", "-c", where, shlex.join(words))

    def keys(self, name: str, *keys: str) -> None:
        """Pressed one after the other, for as long as there is a pane."""
        for key in keys:
            self._tmux("send-keys", "-t", f"={name}:", key, check=False)

    def write(self, name: str, words: str) -> None:
        """Typed, and seen to stand there."""
        self._tmux("send-keys", "-t", f"={name}:", "-l", "--", words)
        self.until_screen(name, re.escape(words[-20:]))

    def prompt(self, name: str, script: str) -> None:
        """A prompt, and the model hears of it."""
        before = self.model.played(script)
        self.write(name, f"please play:{script}")
        self.keys(name, "Enter")
        self.until(lambda: self.model.played(script) > before, f"the model is asked to play {script}")

    def screen(self, name: str) -> str:
        shown = self._tmux("capture-pane", "-p", "-t", f"={name}:", check=False)
        return "\n".join(line.rstrip() for line in shown.splitlines() if line.strip())

    def last_screens(self) -> str:
        names = self._tmux("list-sessions", "-F", "#S", check=False).split()
        outs = [f"-- {path.name}\n{path.read_text(errors='replace')[-800:]}" for path in self.world.dir.glob("*.out")]
        return "\n".join([*(f"-- {name}\n{self.screen(name)}" for name in names), *outs])

    def until_screen(self, name: str, pattern: str, seconds: float = PATIENCE) -> str:
        """The screen that shows it. Raises Broken."""
        return str(self.until(lambda: self._shown(name, pattern), f"{name} shows {pattern!r}", seconds))

    def _shown(self, name: str, pattern: str) -> str | None:
        screen = self.screen(name)
        return screen if re.search(pattern, screen) else None

    def answer(self, name: str, key: str, dialog: str) -> None:
        """Press that key until the dialog has gone: a program passes over what is pressed while it draws one."""
        pressed = 0.0

        def gone() -> bool:
            nonlocal pressed
            if not self._shown(name, dialog):
                return True
            if time.monotonic() - pressed > AGAIN:
                self.keys(name, key)
                pressed = time.monotonic()
            return False

        self.until(gone, f"{name} shows {dialog!r} no more")

    def until_gone(self, name: str, pattern: str) -> None:
        """The screen does not show it any more. Raises Broken."""
        self.until(lambda: not self._shown(name, pattern), f"{name} shows {pattern!r} no more")

    # -- what the daemon says and did

    def agents(self) -> list[dict[str, Any]]:
        """All that it knows, the ended too."""
        found: list[dict[str, Any]] = self.world.ask("GET", "/v1/agents?all=1")[1]["agents"]
        return found

    def agent(self, name: str) -> dict[str, Any]:
        """As it lists it now. Raises Broken."""
        found = [agent for agent in self.agents() if agent["name"] == name]
        if not found:
            raise Broken(f"{name} is not listed: {[one['name'] for one in self.agents()]}")
        return found[-1]

    def until_agent(
        self, name: str, what: str, holds: Callable[[dict[str, Any]], Any], seconds: float = PATIENCE
    ) -> None:
        """The daemon comes to say so within the time. Raises Wrong."""
        deadline = time.monotonic() + seconds
        while True:
            agent = next((one for one in reversed(self.agents()) if one["name"] == name), None)
            if agent is not None and holds(agent):
                return
            if time.monotonic() > deadline:
                raise Wrong(f"never {what}: {_brief(agent)}")
            time.sleep(0.1)

    def until_state(self, name: str, state: str, seconds: float = PATIENCE) -> None:
        """Raises Wrong."""
        self.until_agent(name, f"`{state}`", lambda agent: agent["state"] == state, seconds)

    def told(self, event: str, name: str = "") -> list[dict[str, Any]]:
        """Log events of that kind, of one agent or all."""
        return [e for e in self.world.events() if e["event"] == event and name in ("", e.get("name"))]

    def until_told(self, event: str, name: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """Raises Wrong."""
        deadline = time.monotonic() + seconds
        while not (found := self.told(event, name)):
            if time.monotonic() > deadline:
                raise Wrong(f"never {event} of {name}: {_brief(self.agent(name))}")
            time.sleep(0.1)
        return found[0]

    def lives(self, name: str, seconds: float, until: Callable[[], object] | None = None) -> str:
        """It lives on for that time (or until that holds). Raises Wrong; what the daemon says of it then."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not (until is not None and until()):
            self.spared(name)
            time.sleep(0.2)
        self.spared(name)
        agent = self.agent(name)
        right(agent["status"] not in ENDED, f"it did not live on: {_brief(agent)}")
        return _brief(agent)

    def ends_by_itself(self, name: str, seconds: float) -> set[str]:
        """It lives to its own end, as what it was started for is done. Raises Wrong; each state that it had."""
        deadline, states = time.monotonic() + seconds, set()
        while (agent := self.agent(name))["status"] not in ENDED:
            self.spared(name)
            states.add(agent["state"])
            right(time.monotonic() < deadline, f"never ended: {_brief(agent)}")
            time.sleep(0.2)
        self.spared(name)
        right(agent["status"] == "completed", f"ended as {agent['status']}: {_brief(agent)}")
        return states

    def spared(self, name: str) -> None:
        """Raises Wrong where an order of the daemon's own was given to end it."""
        called_off = {e.get("request_id") for e in self.told("kill.withdrawn", name)}
        for order in self.told("kill.requested", name):
            if order["request_id"] not in called_off and order["reason"] not in ("operator", "stop", "gone"):
                raise Wrong(f"killed as {order['reason']}: {_brief(self.agent(name))}")

    def stalls(self, name: str, seconds: float = AFTER + 60) -> str:
        """It is found stalled and ended with its whole tree. Raises Wrong: missed."""
        deadline = time.monotonic() + seconds
        while not (orders := self.told("kill.requested", name)):
            if time.monotonic() > deadline:
                raise Wrong(f"a stall missed for {seconds:.0f} s: {_brief(self.agent(name))}")
            time.sleep(0.1)
        right(orders[0]["reason"] == "stalled", f"ended as {orders[0]['reason']}")
        self.ended(name, "killed")
        return f"ended: {orders[0]['why']}"

    def ended(self, name: str, *statuses: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """It ended so. Raises Wrong."""
        self.until_agent(name, f"{statuses}", lambda agent: agent["status"] in ENDED, seconds)
        agent = self.agent(name)
        right(agent["status"] in statuses, f"ended as {agent['status']}, not {statuses}: {_brief(agent)}")
        return agent

    def tidied(self) -> None:
        """Whatever outlived an agent that has ended is ended, too, as it is within ten minutes."""
        self.world.cli("reap")

    def tree(self) -> list[int]:
        """Living processes of this world but the daemon, its helpers and tmux; also those without our environment."""
        daemon = self.world.daemon.pid if self.world.daemon is not None else 0
        own = {daemon, *_descendants(daemon)}
        return [pid for pid in self.world.left() if pid not in own and "tmux" not in _comm(pid)]

    def tools_run(self) -> int:
        """How many tool calls have come to their end."""
        return sum(event["hook_event_name"] in _TOOL_OVER for event in self.events())


_TOOL_OVER = ("PostToolUse", "AfterTool", "tool.execute.after")


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_descendants(child)]
    return found


def dead(pids: list[int], seconds: float = 20) -> None:
    """All of these end. Raises Wrong."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if alive(pid)]:
        if time.monotonic() > deadline:
            raise Wrong(f"{len(left)} of {len(pids)} processes live: {[_comm(pid).strip() for pid in left]}")
        time.sleep(0.05)


def _brief(agent: dict[str, Any] | None) -> str:
    if agent is None:
        return "it is not listed"
    words = [agent["status"], agent["verdict"], agent["state"], agent.get("tool"), agent.get("note")]
    return ", ".join(str(word) for word in words if word)


_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|ses_\w{20,}|\b[ab][0-9a-z]{8,16}\b|\b[0-9a-f]{8}\b"
)
_MILLISECONDS = re.compile(r"\b1[6-9]\d{11}\b")
_DATE = re.compile(r"20\d\d([-/])\d\d\1\d\d(T\d\d[:-]\d\d([:-]\d\d(\.\d+)?Z?)?(?!\w))?")


def _uid() -> int:
    """Of who runs the programs."""
    return 65534 if AS_USER else os.getuid()


def redacted(events: list[dict[str, Any]], words: Mapping[str, str]) -> list[str]:
    """As lines of JSON, without ids, paths and times of this machine; one that comes again keeps its new name."""
    names: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        if found[0].isalpha():
            return found[0]
        return names.setdefault(found[0], f"id-{len(names) + 1}")

    lines = []
    for event in events:
        line = json.dumps({key: value for key, value in event.items() if key not in ("timestamp", "duration_ms")})
        for theirs, ours in words.items():
            line = line.replace(theirs, ours)
        line = _MILLISECONDS.sub("1000000000000", re.sub(r"PGID: \d+", "PGID: 1", line))
        lines.append(_ID.sub(name, _DATE.sub("DATE", line)))
    return lines


# -- what each program needs so that it asks nothing, and speaks to our model


def serve_nap(vendor: str, home: Path, world: Path) -> None:
    """The MCP server `slow`, in that program's own configuration."""
    # Codex gives its servers a clean environment: so they are known by their words.
    command = [sys.executable, str(Path(__file__).with_name("nap.py")), str(world)]
    match vendor:
        case "claude":
            path = home / ".claude.json"
            servers = {"slow": {"type": "stdio", "command": command[0], "args": command[1:]}}
            path.write_text(json.dumps({**json.loads(path.read_text()), "mcpServers": servers}))
        case "codex":
            with (home / ".codex/config.toml").open("a") as config:
                config.write(f'[mcp_servers.slow]\ncommand = "{command[0]}"\nargs = {json.dumps(command[1:])}\n')
                config.write('default_tools_approval_mode = "approve"\ntool_timeout_sec = 900\n')
        case "gemini":
            path = home / ".gemini/settings.json"
            server: dict[str, Any] = {"command": command[0], "args": command[1:], "trust": True}
            path.write_text(json.dumps({**json.loads(path.read_text()), "mcpServers": {"slow": server}}))
        case _:
            path = home / ".config/opencode/opencode.json"
            server = {"type": "local", "command": command, "enabled": True, "timeout": 900_000}
            path.write_text(json.dumps({**json.loads(path.read_text()), "mcp": {"slow": server}}))


def environment(vendor: str, url: str) -> dict[str, str]:
    match vendor:
        case "claude":
            quiet = ("AUTOUPDATER", "TELEMETRY", "ERROR_REPORTING")
            more = {f"DISABLE_{each}": "1" for each in quiet} | {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
            return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": _KEY, **more}
        case "codex":
            return {"OPENAI_API_KEY": _KEY}
        case "gemini":
            more = {"GEMINI_TELEMETRY_ENABLED": "false", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
            return {"GEMINI_API_KEY": _KEY, "GOOGLE_GEMINI_BASE_URL": url, **more}
        case _:
            quiet = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD")
            return {"OPENAI_API_KEY": _KEY, **{f"OPENCODE_DISABLE_{each}": "1" for each in quiet}}


def configure(vendor: str, home: Path, url: str, trusted: Sequence[Path]) -> None:
    """The files of a user who has been asked all there is to ask, about these directories too."""
    files: dict[str, str] = {}
    match vendor:
        case "claude":
            project = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
            files[".claude.json"] = json.dumps(
                {
                    "hasCompletedOnboarding": True,
                    "theme": "dark",
                    "customApiKeyResponses": {"approved": [_KEY[-20:]], "rejected": []},
                    "projects": {str(path): project for path in trusted},
                }
            )
        case "codex":
            trust = "".join(f'[projects."{path}"]\ntrust_level = "trusted"\n' for path in trusted)
            files[".codex/config.toml"] = f"""\
model = "played"
model_provider = "played"
check_for_update_on_startup = false
[model_providers.played]
name = "played"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
[analytics]
enabled = false
{trust}"""
        case "gemini":
            files[".gemini/settings.json"] = json.dumps(
                {
                    "security": {"auth": {"selectedType": "gemini-api-key"}},
                    "general": {"enableAutoUpdate": False},
                    "ui": {"hideTips": True},
                }
            )
        case "opencode":
            files[".config/opencode/opencode.json"] = json.dumps(
                {
                    "$schema": "https://opencode.ai/config.json",
                    "autoupdate": False,
                    "share": "disabled",
                    "model": "played/played",
                    "small_model": "played/played",
                    "enabled_providers": ["played"],
                    "provider": {
                        "played": {
                            "npm": "@ai-sdk/openai-compatible",
                            "name": "played",
                            "options": {"baseURL": f"{url}/v1", "apiKey": _KEY},
                            "models": {"played": {"name": "played", "limit": {"context": 90000, "output": 4000}}},
                        }
                    },
                    "permission": {"edit": "ask", "bash": "allow"},
                }
            )
    for below, text in files.items():
        path = home / below
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@contextmanager
def staged(version: Version, scripts: Scripts, policies: str = "", **tables: Any) -> Iterator[Stage]:
    """A stage, torn down afterwards."""
    model = Model(scripts)
    directory = Path(tempfile.mkdtemp(prefix="aw-", dir="/tmp"))
    try:
        world = VendorWorld(directory, version, model, **tables)
        try:
            with world.config.open("a") as config:
                config.write(policies)
            world.start(prefix=world.prefix)
            yield Stage(world)
        finally:
            model.close()
            world.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
