"""What one daemon is asked and what happens below it: every route, every verb, and a story of agents, in order.

Each thing is done once. What comes of it is put into records by name; `records` says which there are.
"""

import json
import os
import re
import subprocess
from typing import Any

from tests.wire.shape import merged, shape, unrepeated
from tests.wire.station import CONFIGURATION, Station, wait_for

Json = dict[str, Any]
ABSENT = 4_194_303  # a pid that nobody has: pid_max is one more, and far lower on most machines
NOBODY = 65534
BARE = "without /v1"
# One child in its session, one in another; none of them heeds TERM.
STUBBORN = "trap '' TERM; sleep 1001 & setsid sleep 1002 & while :; do sleep 1003; done"


class Story:
    """Plays, and keeps what it saw."""

    def __init__(self, station: Station) -> None:
        self.at = station
        self.routes: dict[str, Json] = {}
        self.verbs: dict[str, Json] = {}
        self.strangers: Json = {}
        self.raw: list[tuple[Json, str, Any]] = []  # answers whose shape is taken at the end, when the host is known

    def play(self) -> None:
        """All of it."""
        at = self.at
        at.start()
        self.register()
        self.silent_one()
        self.words()
        self.reads()
        self.holds()
        self.ends()
        self.afterwards()
        self.restores()
        self.by_command()
        self.reloads()
        known = at.known()
        for into, key, value in self.raw:
            into[key] = shape(value, known)
        for cases in self.routes.values():
            if BARE in cases and cases[BARE] == cases["good"]:
                cases[BARE] = {"the same": True}
        agents = self.routes["GET /agents"]["good"]["json"]["agents"]
        for cases in (*self.routes.values(), *self.verbs.values(), self.strangers):
            for case in cases.values():
                if case is not self.routes["GET /agents"]["good"] and "json" in case:
                    case["json"] = unrepeated(case["json"], agents)

    # -- asking

    def http(self, route: str, case: str, path: str, body: object = None) -> Any:
        """One case of one route, like "POST /kill"; `path` is what is asked for."""
        method = route.split()[0]
        status, content_type, content = self.at.ask(method, path, body)
        kept: Json = {"status": status, "type": content_type}
        self.routes.setdefault(route, {})[case] = kept
        answer: Any = None
        if content_type.split(";")[0] == "application/json":
            answer = json.loads(content)
            self.raw.append((kept, "json", answer))
        return answer if answer is not None else content.decode()

    def faults(self, route: str, path: str, **right: object) -> None:
        """What a body with an unknown key, none, and no JSON is answered; the names that the refusal tells."""
        answer = self.http(route, "unknown key", path, {**right, "nonsense": 1})
        told = re.findall(r"[a-z_]+(?:, [a-z_]+)+$", answer.get("message", ""), re.MULTILINE)
        self.routes[route]["unknown key"]["keys"] = told[0].split(", ") if told else []
        self.http(route, "no JSON", path, b"{")

    def verb(self, *words: str, case: str = "", name: str = "", **environ: str) -> Any:
        """One verb: its exit status, which streams it wrote to, and its JSON."""
        done = self.at.cli(*words, **environ)
        return self.said(done, name or words[0], case or " ".join(words[1:]) or "plain", "--json" in words)

    def said(self, done: "subprocess.CompletedProcess[str]", verb: str, case: str, as_json: bool) -> Any:
        streams = [name for name, text in (("stdout", done.stdout), ("stderr", done.stderr)) if text]
        kept: Json = {"exit": done.returncode, "writes to": streams}
        cases = self.verbs.setdefault(verb, {})
        assert case not in cases, f"{verb}: two cases called {case!r}"
        cases[case] = kept
        if not as_json or not done.stdout:
            return done.stdout
        answers = _documents(done.stdout)
        answer = answers[0] if len(answers) == 1 else answers
        kept["documents"] = "one" if len(answers) == 1 else "one a line"
        self.raw.append((kept, "json", answer))
        return answer

    # -- the parts, in order

    def register(self) -> None:
        """POST /agents and PATCH /agents/ID, good and bad."""
        at = self.at
        self.process = at.spawn("sleep", "1000")
        self.bare = self.http("POST /agents", "name alone", "/v1/agents", {"name": "bare"})["agent_id"]
        whole = {
            "name": "whole",
            "pid": self.process.pid,
            "type": "wire",
            "tags": ["one", "two"],
            "task": "T-1",
            "stall_after_seconds": 300,
            "interval_seconds": 30,
            "ttl_seconds": 86400,
            "log": str(at.dir / "whole.log"),
            "transcript": str(at.dir / "whole.jsonl"),
            "source": "wire",
            "command": "wire",
        }
        self.whole = self.http("POST /agents", "every key", "/v1/agents", whole)["agent_id"]
        queued = {"name": "queued", "queued": True, "parent": "whole", "beat_file": str(at.dir / "beats")}
        self.http("POST /agents", "queued", "/v1/agents", queued)
        self.http("POST /agents", "name taken", "/v1/agents", {"name": "whole"})
        self.http("POST /agents", "no such pid", "/v1/agents", {"name": "absent", "pid": ABSENT})
        self.http("POST /agents", "pid of another agent", "/v1/agents", {"name": "twice", "pid": self.process.pid})
        self.http("POST /agents", "wrong type", "/v1/agents", {"name": 1})
        self.faults("POST /agents", "/v1/agents")
        other = at.spawn("sleep", "1000")
        change = "/v1/agents/bare"
        self.http("PATCH /agents/{agent_id}", "pid", change, {"pid": other.pid})
        self.http("PATCH /agents/{agent_id}", "pid of another", change, {"pid": self.process.pid})
        self.http("PATCH /agents/{agent_id}", "no such agent", "/v1/agents/absent", {"pid": other.pid})
        self.faults("PATCH /agents/{agent_id}", change)
        self.http("PATCH /agents/{agent_id}", "an end, of one that lives", change, {"exit_code": 3})

    def silent_one(self) -> None:
        """An agent that beats once and not again; it is waited for later."""
        at = self.at
        temp, tree = at.dir / "stubborn-temp", at.worktree("stubborn-tree")
        temp.mkdir()
        self.stubborn = at.agent(
            "stubborn", "sh", "-c", STUBBORN, task="T-2", stall_after_seconds=1, worktree=tree, temp_dir=str(temp)
        )
        self.runner = at.spawn(
            "agent-watchdog", "run", "--name", "runner", "--task", "T-3", "--temp-dir", "auto", "--", "sh", "-c",
            f"agent-watchdog beat --state working --note wire; until [ -e {at.dir}/heard ]; do sleep .1; done; exit 3",
        )  # fmt: skip
        at.wait_event("agent.first_beat", name="runner")  # an end waits for no beat that is on its way
        (at.dir / "heard").touch()
        self.held = at.agent("held", temp_dir=str(self._made("held-temp")))

    def _made(self, name: str) -> Any:
        path = self.at.dir / name
        path.mkdir()
        return path

    def words(self) -> None:
        """Beats by HTTP; the last is the stubborn one's only one, when its tree is there."""
        route, path = "POST /agents/{agent_id}/beat", f"/v1/agents/{self.whole}/beat"
        said = {"state": "working", "progress": 1, "note": "wire", "tool": "build", "tool_limit_seconds": 600}
        self.http(route, "empty", path, {})
        self.http(route, "words", path, said)
        self.http(route, "by name, bare path", "/agents/whole/beat", {"silent_for_seconds": 60})
        self.http(route, "wrong state", path, {"state": "dancing"})
        self.http(route, "unknown key", path, {"nonsense": 1})
        self.http(route, "no JSON", path, b"{")
        self.http(route, "no such agent", "/v1/agents/absent/beat", {})
        session = "POST /sessions/beat"
        good = {"session": "s", "pid": self.process.pid, "type": "codex", "cwd": "/", "beat": {}}
        self.http(session, "no service", "/v1/sessions/beat", good)
        self.http(session, "no such process", "/v1/sessions/beat", {**good, "pid": ABSENT})
        self.faults(session, "/v1/sessions/beat")
        wait_for(lambda: len(self._tree(self.stubborn)) >= 4, "the tree of the stubborn one")
        self.at.json("POST", f"/v1/agents/{self.stubborn}/beat", {"note": "the only one"})

    def judged(self, agent_id: str) -> None:
        """Wait until a sweep has seen it with its pid."""
        path = f"/v1/agents/{agent_id}"
        wait_for(
            lambda: self.at.json("GET", path)["agent"]["verdict"] not in (None, "starting"), f"{agent_id} is judged"
        )

    def _tree(self, agent_id: str) -> list[Json]:
        story = self.at.json("GET", f"/v1/agents/{agent_id}")
        return list(story["agent"]["members"])

    def reads(self) -> None:
        """What can be read while agents live; the runner has ended, the stubborn one too."""
        at = self.at
        self.runner.wait()
        ended = at.wait_event("agent.ended", name="runner")
        self.ended_runner = ended["agent_id"]
        at.ended(self.stubborn)
        wait_for(lambda: len(self._tree(self.whole)) == 1, "the tree of the whole one")
        for agent_id in (self.whole, self.bare, self.held):
            self.judged(agent_id)
        for route in ("/agents", "/agents/{agent_id}", "/status", "/custody", "/metrics"):
            path = route.format(agent_id="whole")
            self.http(f"GET {route}", "good", f"/v1{path}")
            self.http(f"GET {route}", BARE, path)
        self.metrics_text = at.ask("GET", "/metrics")[2].decode()
        self.http("GET /agents", "all", "/v1/agents?all=1")
        self.http("GET /agents", "all_hosts", "/v1/agents?all_hosts=1")
        self.http("GET /agents", "tag", "/v1/agents?tag=one")
        self.http("GET /agents", "name", "/v1/agents?name=whole")
        self.http("GET /agents/{agent_id}", "killed", f"/v1/agents/{self.stubborn}")
        self.http("GET /agents/{agent_id}", "ended by itself", f"/v1/agents/{self.ended_runner}")
        self.http("GET /agents/{agent_id}", "queued", "/v1/agents/queued")
        self.http("GET /agents/{agent_id}", "no such agent", "/v1/agents/absent")
        content = self.http("GET /events", "after", "/v1/events?after=0")
        lines = [json.loads(line) for line in content.splitlines()]
        self.raw.append((self.routes["GET /events"]["after"], "lines", lines))
        content = self.http("GET /events", "agent", f"/v1/events?agent={self.stubborn}")
        self.history = [json.loads(line)["event"] for line in content.splitlines()]
        self.http("GET /events", "wrong number", "/v1/events?after=x")
        self.http("GET /events", "no such agent", "/v1/events?agent=absent")
        if os.geteuid() == 0:
            self.as_stranger()
        self.http("GET /absent", "no such path", "/v1/absent")
        self.http("DELETE /agents", "no such method", "/v1/agents")

    def as_stranger(self) -> None:
        """What each route answers another user of the host about agents that are not its own."""
        at = self.at
        for directory in (at.dir, at.runtime):
            directory.chmod(0o755)
        whole: Json = {"targets": ["whole"]}
        asked: tuple[tuple[str, str, Json | None], ...] = (
            ("GET", "/agents", None),
            ("GET", "/agents?all=1", None),
            ("GET", f"/agents/{self.whole}", None),
            ("GET", "/agents/whole", None),
            ("GET", "/status", None),
            ("GET", "/custody", None),
            ("GET", "/metrics", None),
            ("GET", "/events?after=0", None),
            ("GET", f"/events?agent={self.whole}", None),
            ("GET", "/restore", None),
            ("GET", "/restore?owner_uid=0", None),
            ("POST", "/agents", {"name": "theirs", "pid": self.process.pid}),
            ("PATCH", f"/agents/{self.whole}", {"exit_code": 0}),
            ("POST", f"/agents/{self.whole}/beat", {}),
            ("POST", "/sessions/beat", {"session": "s", "pid": self.process.pid, "type": "codex"}),
            *(("POST", f"/{act}", whole) for act in ("kill", "stop", "remove", "hold", "unhold")),
            ("POST", "/cancel", {"targets": ["T-1"]}),
            ("POST", "/kill", {"targets": ["all"]}),
            ("POST", "/hold", {}),
            ("POST", "/unhold", {}),
            ("POST", "/purge", {"agent": self.stubborn}),
            ("POST", "/reap", {"dry_run": True}),
            ("POST", "/restore", {"id": self.stubborn}),
            ("POST", "/reload", {}),
        )
        for method, path, body in asked:
            status, content = _as_nobody(at, method, f"/v1{path}", body)
            kept: Json = {"status": status}
            said = path.replace(self.whole, "ID") + (
                f" {' '.join(body.get('targets', []))}" if body is not None else ""
            )
            self.strangers[f"{method} {said}".strip()] = kept
            if path.startswith("/events") and status == 200:
                kept["lines"] = len(content.splitlines())
            elif content[:1] == b"{":
                self.raw.append((kept, "json", json.loads(content)))

    def holds(self) -> None:
        """One agent's, and everybody's."""
        self.http("POST /hold", "an agent", "/v1/hold", {"targets": ["held"], "reason": "wire", "for_seconds": 600})
        self.http("POST /hold", "all", "/v1/hold", {"reason": "wire"})
        self.http("POST /hold", "no such agent", "/v1/hold", {"targets": ["absent"]})
        self.faults("POST /hold", "/v1/hold", for_seconds=600)
        self.http("GET /status", "held", "/v1/status")
        self.http("GET /agents", "held", "/v1/agents?name=held")
        self.http("POST /kill", "of a held one", "/v1/kill", {"targets": ["held"], "dry_run": True})
        self.http("POST /unhold", "all", "/v1/unhold", {})
        self.http("POST /unhold", "an agent", "/v1/unhold", {"targets": ["held"]})
        self.http("POST /unhold", "not held", "/v1/unhold", {"targets": ["held"]})
        self.faults("POST /unhold", "/v1/unhold", targets=["held"])

    def ends(self) -> None:
        """Kill, stop, cancel, remove, by HTTP."""
        at = self.at
        none = {"targets": ["absent"]}
        for name in ("kill", "stop", "cancel", "remove"):
            self.http(f"POST /{name}", "no such target", f"/v1/{name}", none)
            self.faults(f"POST /{name}", f"/v1/{name}", targets=["absent"])
        self.http("POST /kill", "empty", "/v1/kill", {})
        self.http("POST /kill", "dry run", "/v1/kill", {"targets": ["held", "absent"], "dry_run": True})
        self.http("POST /remove", "of one that lives", "/v1/remove", {"targets": ["held"]})
        self.http("POST /kill", "done", "/v1/kill", {"targets": ["held"], "reason": "wire", "force": True})
        at.ended(self.held)
        self.http("POST /kill", "of one that has ended", "/v1/kill", {"targets": [self.held]})
        self.http("POST /remove", "of one that has ended", "/v1/remove", {"targets": [self.held]})
        path = f"/v1/agents/{self.held}"
        self.http("POST /agents/{agent_id}/beat", "of one that has ended", f"{path}/beat", {})
        self.http("PATCH /agents/{agent_id}", "of one that has ended", path, {"exit_code": 0})
        self.http("POST /stop", "asked", "/v1/stop", {"targets": ["whole"], "reason": "wire", "wait": False})
        at.wait_event("stop.asked", agent_id=self.whole)  # from then on its beats are answered
        self.http("POST /agents/{agent_id}/beat", "asked to stop", "/v1/agents/whole/beat", {})
        self.process.kill()
        self.process.wait()
        at.ended(self.whole)
        self.http("GET /agents/{agent_id}", "stopped", f"/v1/agents/{self.whole}")
        cancelled = at.agent("cancelled", task="T-4")
        self.judged(cancelled)
        self.http("POST /cancel", "done", "/v1/cancel", {"targets": ["T-4"], "reason": "wire"})
        at.ended(cancelled)

    def afterwards(self) -> None:
        """What is left behind, and conversations."""
        self.http("POST /reap", "dry run", "/v1/reap", {"dry_run": True})
        self.http("POST /reap", "done", "/v1/reap", {})
        self.faults("POST /reap", "/v1/reap", dry_run=True)
        self.http("POST /purge", "nothing kept", "/v1/purge", {"agent": self.held})
        self.http("POST /purge", "of one that lives", "/v1/purge", {"agent": "bare"})
        self.http("POST /purge", "no such agent", "/v1/purge", {"agent": "absent"})
        self.faults("POST /purge", "/v1/purge", agent="absent")

    def restores(self) -> None:
        """The stubborn one's worktree lies in the trash."""
        self.http("GET /restore", "listed", "/v1/restore")
        self.http("GET /restore", "wrong uid", "/v1/restore?owner_uid=x")
        wanted = {"id": self.stubborn}
        self.http("POST /restore", "dry run", "/v1/restore", {**wanted, "dry_run": True})
        self.http("POST /restore", "not in the trash", "/v1/restore", {"id": "absent"})
        self.faults("POST /restore", "/v1/restore", **wanted)
        self.verb("restore", "--json", case="--json")
        self.http("POST /restore", "done", "/v1/restore", wanted)

    def by_command(self) -> None:
        """The verbs."""
        verb, at = self.verb, self.at
        verb("list", "--json", "--all")
        verb("list")
        verb("list", "--names")
        verb("why", "stubborn", "--json")
        verb("why", "stubborn")
        verb("events", "--json", "--agent", "stubborn")
        verb("status", "--json")
        verb("status")
        verb("register", "--name", "cmd", "--tag", "t", "--pid", str(at.spawn("sleep", "1000").pid), case="plain")
        child = str(at.spawn("sleep", "1000").pid)
        verb("register", "--name", "cmd-child", "--pid", child, "--parent", "cmd", "--json", case="--json")
        verb("hold", "cmd", "--for", "2h", "--reason", "wire", "--json")
        verb("unhold", "cmd", "--json")
        verb("kill", "cmd", "--dry-run", "--json")
        verb("kill", "cmd", "absent", "--children", "--json")
        verb("stop", "absent", "--json")
        verb("cancel", "absent", "--json")
        verb("remove", "stubborn", "--json")
        verb("purge", "stubborn", "--json")
        verb("reap", "--dry-run", "--json")
        verb("install-hooks", "claude", "--dry-run", "--json")
        verb("install-hooks", "absent", "--json")
        verb("beat", "--state", "working", case="no agent")
        verb("run", "--name", "short", "--", "sh", "-c", "exit 3", case="exit 3")
        verb("run", "--name", "absent", "--", str(at.dir / "absent"), case="no such program")
        verb("absent", name="(no such verb)", case="plain")
        verb("list", "--json", case="no daemon --json", AGENT_WATCHDOG_SOCKET=str(at.dir / "absent.sock"))

    def reloads(self) -> None:
        """A good file and one with a fault; the log says which keys."""
        at = self.at
        at.configure({**CONFIGURATION, "kill": {"grace": 2}})
        self.http("POST /reload", "unknown key in the file", "/v1/reload", {})
        at.configure({**CONFIGURATION, "kill": {**CONFIGURATION["kill"], "grace_seconds": 2, "parallel": 5}})
        self.verb("reload", "--json")

    # -- what came of it

    def log_events(self) -> Json:
        """For each agent of the story the names of its events, in order; for each event its keys."""
        names = {"stubborn": self.stubborn, "runner": self.ended_runner, "held": self.held, "whole": self.whole}
        known, found = self.at.known(), self.at.events()
        order: dict[str, list[str]] = {}
        keys: Json = {}
        for one in found:
            agent = next((name for name, agent_id in names.items() if one.get("agent_id") == agent_id), None)
            daemons = one["event"].startswith(("config.", "hold.", "daemon."))
            if agent is None and not daemons:
                continue
            told = order.setdefault(agent or "the daemon", [])
            if not told or told[-1] != one["event"]:
                told.append(one["event"])
            shaped = shape({**one, **({"name": "<name>"} if "name" in one else {})}, known)
            keys[one["event"]] = merged(keys[one["event"]], shaped) if one["event"] in keys else shaped
        self_said = {"history of stubborn": self.history}
        return {"in order": {**order, **self_said}, "keys": keys}

    def metrics(self) -> Json:
        """Type and labels of each figure."""
        kinds: dict[str, str] = {}
        samples: Json = {}
        for line in self.metrics_text.splitlines():
            if line.startswith("# TYPE "):
                name, kind = line.split()[2:4]
                kinds[name] = kind
            elif line and not line.startswith("#"):
                head = line.rpartition(" ")[0]
                name, _, labels = head.partition("{")
                found = re.findall(r'([a-z_]+)="', labels)
                samples.setdefault(name, dict.fromkeys(found, True))
        return {"types": kinds, "samples": {name: sorted(labels) for name, labels in samples.items()}}


def _documents(text: str) -> list[Any]:
    """One JSON document, or one a line."""
    found, decoder, rest = [], json.JSONDecoder(), text.strip()
    while rest:
        document, end = decoder.raw_decode(rest)
        found.append(document)
        rest = rest[end:].strip()
    return found


def _as_nobody(station: Station, method: str, path: str, body: object) -> tuple[int, bytes]:
    """One request of another user, by a process that has become nobody (we are root)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            status, _, content = station.ask(method, path, body)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(b"%d %s" % (status, content))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told, _, content = pipe.read().partition(b" ")
    assert os.waitpid(pid, 0)[1] == 0, f"{method} {path} as another user"
    return int(told), content
