"""The house rules that a machine can hold: who imports whom, who may do what, what each file says of itself."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "watchdog"
FILES = sorted(PACKAGE.rglob("*.py"))

# Lower may not import higher. A module's rank is that of the longest prefix listed here.
RANK = {
    "errors": 0,
    "core": 1,
    "clock": 2,
    "catalogue": 2,
    "untold": 2,
    "places": 2,
    "values": 3,
    "keys": 3,
    "complaints": 3,
    "salvage": 3,
    "config": 3,
    "logs": 3,
    "sink": 3,
    "log_targets": 3,
    "systemd": 2,
    "threads": 2,
    "owner": 2,
    "registry": 4,
    "processes": 4,
    "nss": 4,
    "owners": 4,
    "units": 3,
    "vacancies": 3,
    "children": 3,
    "intake": 4,
    "schedule": 4,
    "cleanup": 4,
    "metrics": 4,
    "fleet": 5,
    "speaker": 4,
    "placement": 6,
    "limits": 5,
    "shortage": 6,
    "holds": 5,
    "notices": 5,
    "sharing": 6,
    "targets": 6,
    "account": 6,
    "scan": 6,
    "chronicle": 6,
    "recording": 6,
    "claimant": 6,
    "retention": 6,
    "reloading": 6,
    "summons": 6,
    "admission": 5,
    "users": 5,
    "lanes": 2,
    "shutdown": 6,
    "bulletin": 12,
    "troubles": 3,
    "activity": 6,
    "hearing": 7,
    "copies": 6,
    "steps": 5,
    "ends": 6,
    "lock": 6,
    "beat_files": 7,
    "restraint": 6,
    "reserve": 6,
    "line_limits": 6,
    "shares": 7,
    "pressure": 5,
    "tidings": 7,
    "growth": 7,
    "prompts": 8,
    "session_files": 8,
    "sites": 7,
    "occupancy": 5,
    "inquiries": 6,
    "panes": 6,
    "ownership": 6,
    "roll": 6,
    "testimony": 6,
    "enclosure": 6,
    "ending": 7,
    "journal": 8,
    "order_rows": 3,
    "orders": 8,
    "closing": 9,
    "telling": 9,
    "asking": 9,
    "resuming": 7,
    "climbing": 7,
    "claiming": 10,
    "kill_worker": 10,
    "takeup": 11,
    "orphans": 9,
    "leftovers": 6,
    "reports": 6,
    "latecomers": 13,
    "reaper": 11,
    "sweep": 11,
    "control": 11,
    "control.client": 2,
    "descriptors": 4,
    "door": 12,
    "custody": 12,
    "sources": 13,
    "source_places": 12,
    "ghosts": 12,
    "entries": 12,
    "service": 13,
    "background": 13,
    "checkup": 13,
    "exposure": 12,
    "start": 14,
    "entry": 15,
    "front": 16,
    "cli": 14,
}

# Pure means: none of these, and nothing that is not listed.
PURE = {
    "bisect",
    "collections",
    "dataclasses",
    "datetime",
    "enum",
    "functools",
    "math",
    "re",
    "shlex",
    "typing",
    "unicodedata",
    "json",
    "zlib",
    "watchdog",
}

# The one owner of each dangerous thing. A prefix of the module's name, or the module itself.
OWNERS = {
    "sqlalchemy": {"registry"},
    "alembic": {"registry"},
    "psycopg": {"registry"},
    "psutil": {"processes"},
    "apscheduler": {"schedule"},
    "aiohttp": {"control"},
    "structlog": {"logs"},
    "pydantic": {"config", "keys", "complaints", "values", "control"},
    "tomllib": {"config", "salvage", "cli.doctor"},  # doctor: one key, where the file cannot be used as a whole
    "ruamel": {"owner.sources.yaml_rows"},
    "daemon": {"background"},
    "mcp": {"cli.tools"},
    "rich": {"cli"},
    "argparse": {"cli", "start"},
    "shutil": {"checkup"},  # which() alone: rmtree may be called by nobody (CALLS)
}

# Who may make a call that does harm in the daemon. The first removes things; the others wait in threads that keep a
# daemon alive when they hang (`threads` has its own). Who may send signals is looked at in test_one_sender.py.
CALLS: dict[str, set[str]] = {"rmtree": set(), "to_thread": {"cli"}, "ThreadPoolExecutor": {"owner", "cli"}}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


@dataclass(frozen=True)
class Said:
    """What a file says, of which each test looks at a part; its tree would be 200 times as large."""

    docstring: str
    imports: tuple[tuple[str, int], ...]
    calls: tuple[tuple[str, int], ...]  # the last word of what is called, and the line
    bare: tuple[tuple[str, int], ...]  # of these, what is called by that word alone


@cache
def said(path: Path) -> Said:
    tree = ast.parse(path.read_text())
    imported: list[tuple[str, int]] = []
    calls: list[tuple[str, int]] = []
    bare: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            assert node.module
            imported.append((node.module, node.lineno))
            if node.module == "watchdog" or node.module.startswith("watchdog."):
                imported += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            calls.append((node.func.id, node.lineno))
            bare.append((node.func.id, node.lineno))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            calls.append((node.func.attr, node.lineno))
    return Said(ast.get_docstring(tree) or "", tuple(imported), tuple(calls), tuple(bare))


def imports(path: Path) -> tuple[tuple[str, int], ...]:
    return said(path).imports


def rank(module: str) -> int:
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if (found := RANK.get(".".join(parts[:length]))) is not None:
            return found
    raise AssertionError(
        f"{module} has no rank: give it one in tests/test_layout.py and a line in watchdog/__init__.py"
    )


@pytest.mark.parametrize("path", FILES, ids=[name_of(p) for p in FILES])
def test_imports_run_downwards(path: Path) -> None:
    """A module imports from its own room and from rooms below, never upwards or sideways into a peer room."""
    module = name_of(path)
    if not module or module == "__init__":
        return
    room = module.split(".")[0]
    for name, line in imports(path):
        if not name.startswith("watchdog."):
            continue
        other = name.removeprefix("watchdog.")
        if other.split(".")[0] != room:
            assert rank(other) <= rank(module), f"{path}:{line} imports {name} from above"


@pytest.mark.parametrize("room", ["owner", "cli"])
def test_what_runs_elsewhere_stays_small(room: str) -> None:
    """The owner's helper imports core and errors alone; the verbs speak to the daemon only through the client."""
    allowed = {"owner": ("core", "errors", "owner"), "cli": ("core", "errors", "cli", "control.client")}[room]
    for path in (PACKAGE / room).rglob("*.py"):
        for name, line in imports(path):
            if name.startswith("watchdog."):
                other = name.removeprefix("watchdog.")
                fits = any(other == a or other.startswith(a + ".") or a.startswith(other + ".") for a in allowed)
                assert fits, f"{path}:{line} imports {name}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").glob("*.py")), ids=lambda p: p.stem)
def test_core_is_pure(path: Path) -> None:
    """No clock, file, process, log or thread can be reached from core."""
    for name, line in imports(path):
        assert name.split(".")[0] in PURE, f"{path}:{line} imports {name}"
    for called, line in said(path).bare:
        assert called not in {"open", "print", "input", "exec", "eval"}, f"{path}:{line}"


@pytest.mark.parametrize("path", FILES, ids=[name_of(p) for p in FILES])
def test_each_dangerous_thing_has_one_owner(path: Path) -> None:
    """One room speaks SQL, one reads /proc by psutil, and nobody calls what is in CALLS."""
    module = name_of(path)
    for name, line in imports(path):
        owners = OWNERS.get(name.split(".")[0])
        if owners is not None:
            assert any(module == o or module.startswith(o + ".") for o in owners), f"{path}:{line} imports {name}"
    for called, line in said(path).calls:
        rooms = CALLS.get(called)
        assert rooms is None or module.split(".")[0] in rooms, f"{path}:{line} calls {called}"


@pytest.mark.parametrize("path", FILES, ids=[name_of(p) for p in FILES])
def test_each_file_says_what_it_is_for(path: Path) -> None:
    """A docstring first."""
    assert said(path).docstring, f"{path} does not say what it is for"


def test_the_map_is_whole() -> None:
    """Whoever comes new reads the map first: every room and module of the top level stands in it, and nothing else."""
    text = said(PACKAGE / "__init__.py").docstring
    names = [line.split()[0] for line in text.splitlines() if line.startswith("    ")]
    there = {f"{path.parent.name}/" for path in PACKAGE.glob("*/*.py")}
    there |= {p.stem for p in PACKAGE.glob("*.py") if p.stem != "__init__"}

    assert sorted(names) == sorted(there)
    assert {name.rstrip("/") for name in names} == {module.split(".")[0] for module in RANK}


def test_no_module_collides_with_the_other_watchdog() -> None:
    """PyPI's watchdog has modules of these names, and python-daemon imports as `daemon`."""
    taken = {"events", "version", "__main__", "watchmedo", "observers", "utils", "tricks", "daemon"}
    assert not taken & {path.stem for path in PACKAGE.iterdir()}
