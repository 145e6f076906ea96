"""The parts of the daemon: which of them depend on the settings, and that a reload reaches each."""

import ast
import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import watchdog
from tests.faults.crash.own import own_daemon
from watchdog.config.settings import Settings, load

PACKAGE = Path(watchdog.__file__).parent
HANDED_DOWN = {"ConfigReload"}  # it has them, and passes them on


def objects(start: object) -> Iterator[object]:
    """All objects of ours that can be reached from there by attributes, tuples and dictionaries."""
    seen: set[int] = set()
    todo: list[object] = [start]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type | Settings):
            continue
        seen.add(id(one))
        if isinstance(one, tuple | list | set | frozenset):
            todo += one
        elif isinstance(one, dict):
            todo += one.values()
        elif type(one).__module__.startswith("watchdog."):
            yield one
            todo += values(one).values()


def values(one: object) -> dict[str, Any]:
    slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(one, name)]
    return {name: getattr(one, name) for name in slots} | getattr(one, "__dict__", {})


def applying() -> set[str]:
    """The classes of the daemon with a method `apply(self, settings: Settings) -> None`."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(method, ast.FunctionDef) and method.name == "apply":
                    assert ast.unparse(method.args) == "self, settings: Settings", f"{file}:{method.lineno}"
                    found.add(node.name)  # type: ignore[attr-defined]
    return found


def test_each_part_with_settings_follows_a_reload() -> None:
    """Each part that stores settings, or has `apply`, is in `Parts.configured`; afterwards none has the former ones."""

    async def story(place: Path) -> None:
        async with own_daemon(place, url=f"sqlite:///{place}/registry.db") as parts:
            configured = {id(part) for part in parts.configured}
            former = parts.reload.settings
            for one in objects(parts):
                if type(one).__name__ not in HANDED_DOWN and any(v is former for v in values(one).values()):
                    assert id(one) in configured, f"{type(one)} keeps settings: name it in wiring.Parts.configured"
            named = {type(part).__name__ for part in parts.configured}
            assert applying() - named == {"Daemon", "Configured"}, "add it to `configured` in service/wiring.py"

            called: list[object] = []

            class Noting:
                def __init__(self, part: Any) -> None:
                    self.part = part

                def apply(self, settings: Settings) -> None:
                    called.append(self.part)
                    self.part.apply(settings)

            file = Path(former.file or "")
            file.write_text(file.read_text().replace("interval_seconds = 10", "interval_seconds = 7"))
            parts.reload._read = lambda: load(str(file))
            await parts.reload.run([Noting(part) for part in parts.configured])
            assert called == list(parts.configured)
            assert parts.reload.settings.interval.total_seconds() == 7
            for one in objects(parts):
                assert all(v is not former for v in values(one).values()), f"{type(one)} goes by the former ones"

    with tempfile.TemporaryDirectory(prefix="aww-", dir="/tmp") as name:  # a short path, for sockets
        asyncio.run(story(Path(name)))
