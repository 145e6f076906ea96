"""Both clients to copy (config/clients), so that one test can be played with each: Python's here, Node's in a process.

Options have the names of the Python one; for Node they are turned into its camelCase and milliseconds.
"""

import importlib.util
import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pytest

from tests.world import PATIENCE, wait_for

ROOT = Path(__file__).parent.parent.parent
PLACE = ROOT / "config/clients"
PYTHON = PLACE / "agent_watchdog_client.py"
NODE = PLACE / "agent-watchdog-client.mjs"
TYPES = PLACE / "agent-watchdog-client.d.mts"
DRIVER = Path(__file__).parent / "driver.mjs"
NAMES = ("python", "node")
Json = dict[str, Any]


def load() -> ModuleType:
    """The Python client, as a program that has it beside itself imports it."""
    spec = importlib.util.spec_from_file_location(PYTHON.stem, PYTHON)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


client = load()


class Refused(Exception):
    """What a client raised: the name of its class, its code, status and answer."""

    def __init__(self, name: str, code: str | None, status: int | None, message: str, answer: Json | None) -> None:
        super().__init__(f"{name} {code}: {message}")
        self.name, self.code, self.status, self.message, self.answer = name, code, status, message, answer or {}


class Stream(Protocol):
    """A follower."""

    def next(self, seconds: float) -> Json | None:
        """The next event; None where none came. Raises Refused."""

    def close(self) -> None:
        """Leave."""


class Client(Protocol):
    """What a test asks of a client; `call` takes the name of a method of Python's."""

    name: str

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Its answer. Raises Refused."""

    def follow(self, **options: Any) -> Stream:
        """A follower."""

    def descriptors(self) -> int:
        """How many it has open."""


# -- Python


class PythonStream:
    """`EventStream`."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def next(self, seconds: float) -> Json | None:
        with refusals():
            event: Json | None = self.stream.next(seconds)
            return event

    def close(self) -> None:
        self.stream.close()


class PythonClient:
    """In this process; `environ` is what it sees as its environment while it is asked."""

    name = "python"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)
        self.watchdog = client.Watchdog(timeout=PATIENCE)

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        with refusals(), self.surroundings():
            if method == "find_socket":
                return client.find_socket()
            answer = getattr(self.watchdog, method)(*args, **options)
            return list(answer) if method == "events" else answer

    def follow(self, **options: Any) -> PythonStream:
        with refusals(), self.surroundings():
            return PythonStream(self.watchdog.follow_events(**options))

    def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for key in ("AGENT_WATCHDOG_SOCKET", "AGENT_WATCHDOG_ID", "XDG_RUNTIME_DIR"):
                patch.delenv(key, raising=False)
                if key in self.environ:
                    patch.setenv(key, self.environ[key])
            yield


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except client.WatchdogError as error:
        raise Refused(type(error).__name__, error.code, error.http_status, str(error), error.answer) from error


# -- Node


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def translated(options: Mapping[str, Any]) -> Json:
    found = {camel(key): value for key, value in options.items()}
    for ours, its in (("timeout", "timeoutMs"), ("awaySeconds", "awayMs")):
        if ours in found:
            found[its] = found.pop(ours) * 1000
    return found


class NodeStream:
    """A loop over `followEvents` in the driver."""

    def __init__(self, node: "NodeClient", number: int) -> None:
        self.node, self.number = node, number

    def next(self, seconds: float) -> Json | None:
        try:
            said = self.node.answers(self.number).get(timeout=seconds)
        except queue.Empty:
            return None
        event: Json | None = judged(said).get("event")
        return event

    def close(self) -> None:
        self.node.tell({"cancel": self.number})


class NodeClient:
    """The driver, in a process that is told what to do line by line."""

    name = "node"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            ["node", str(DRIVER), str(NODE)],
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._number = 0
        self._lock = threading.Lock()
        self._answers: dict[int, queue.Queue[Json]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        if method == "beat":  # there the agent is an option like others
            return self.result(self.begin(method, **options, **dict(zip(["agent"], args, strict=False))))
        return self.result(self.begin(method, *args, **options))

    def begin(self, method: str, *args: Any, aborts: bool = False, **options: Any) -> int:
        """Ask for it, and do not wait; `aborts`: so that `cancel` ends it."""
        return self.ask({"call": camel(method), "args": [*args, translated(options)], "aborts": aborts})

    def result(self, number: int) -> Any:
        return judged(self.answers(number).get(timeout=PATIENCE))["result"]

    def follow(self, **options: Any) -> NodeStream:
        return NodeStream(self, self.ask({"follow": translated(options)}))

    def descriptors(self) -> int:
        return int(self.call("descriptors"))

    def ask(self, order: Json) -> int:
        with self._lock:
            self._number += 1
            number = self._number
        self.answers(number)
        self.tell({"id": number, **order})
        return number

    def tell(self, order: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answers(self, number: int) -> "queue.Queue[Json]":
        with self._lock:
            return self._answers.setdefault(number, queue.Queue())

    def close(self) -> None:
        """End the driver, which ends when nothing more can be asked of it."""
        with self.process:  # waits, and closes its pipes
            assert self.process.stdin is not None
            self.process.stdin.close()
            self._reader.join(PATIENCE)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self.answers(said["id"]).put(said)


def judged(said: Json) -> Json:
    if (error := said.get("error")) is not None:
        raise Refused(error["name"], error.get("code"), error.get("status"), error["message"], error.get("answer"))
    return said


@contextmanager
def running(name: str, environ: Mapping[str, str]) -> Iterator[Client]:
    """That client in that environment; it leaves no descriptor open."""
    if name == "python":
        yield PythonClient(environ)
        return
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    node = NodeClient(environ)
    try:
        before = node.descriptors()
        yield node
        wait_for(lambda: node.descriptors() <= before, "its descriptors are closed")
    finally:
        node.close()
