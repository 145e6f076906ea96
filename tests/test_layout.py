"""The house rules that a machine can hold: who imports whom, who may do what, what each file says of itself."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "watchdog"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each line imports only from lines below it; packages on one line do not import each other.
LAYERS = (
    ("service",),
    ("control",),
    ("sweep", "reaper", "discovery"),
    ("kill",),
    ("cleanup", "probes"),
    ("agents",),
    ("intake", "helpers"),
    ("host",),
    ("registry", "processes"),
    ("config",),
    ("telemetry",),
    ("concurrency", "client", "file_identity"),
    ("core",),
    ("clock", "errors"),
)
# Programs of their own: what each may import of the rest.
APART = {
    "owner": ("core", "errors", "file_identity", "client.custody"),
    "cli": ("core", "errors", "client"),
    "front": ("service.bootstrap", "cli.main"),  # inside functions
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
    "apscheduler": {"service.scheduler"},
    "aiohttp": {"control"},
    "structlog": {"telemetry.logger"},
    "pydantic": {"config", "control"},
    "tomllib": {"config", "cli.doctor"},  # doctor: one key, where the file cannot be used as a whole
    "ruamel": {"owner.sources.yaml_rows"},
    "daemon": {"service.daemonize"},
    "mcp": {"cli.mcp_tools"},
    "rich": {"cli"},
    "argparse": {"cli", "service.main"},
    "shutil": {"service.check"},  # which() alone: rmtree may be called by nobody (CALLS)
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


def package_of(module: str) -> str:
    return module.split(".")[0]


def layer(module: str) -> int:
    """Which line of LAYERS a module stands on."""
    for number, packages in enumerate(LAYERS):
        if package_of(module) in packages:
            return number
    raise AssertionError(
        f"{module}: its package stands in no layer; give it a line in LAYERS and in watchdog/__init__.py"
    )


def may_import(module: str, other: str) -> bool:
    here, there = package_of(module), package_of(other)
    if here == there:
        return True
    if here in APART:
        return any(f"{other}.".startswith(f"{allowed}.") for allowed in APART[here])
    return there not in APART and layer(here) < layer(there)


@pytest.mark.parametrize("path", FILES, ids=[name_of(p) for p in FILES])
def test_imports_run_down_the_layers(path: Path) -> None:
    """A module imports from its own package and from packages below."""
    module = name_of(path)
    for name, line in imports(path):
        other = name.removeprefix("watchdog.")
        if other == name or not module or (PACKAGE / other.replace(".", "/") / "__init__.py").is_file():
            continue  # what is imported from a package has its own name here, too
        assert may_import(module, other), f"{path}:{line} imports {name}: see LAYERS in tests/test_layout.py"


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
    """Whoever comes new reads the map first: it has the lines of LAYERS, in their order."""
    text = said(PACKAGE / "__init__.py").docstring
    lines = [line.strip().split("  ")[0] for line in text.splitlines() if line.startswith("    ")]
    assert [tuple(re.split(r" \| |, ", line)) for line in lines] == list(LAYERS)
    there = {path.parent.name for path in PACKAGE.glob("*/*.py")} | {p.stem for p in PACKAGE.glob("*.py")}
    assert {package for packages in LAYERS for package in packages} | {*APART, "__init__"} == there


def test_no_module_collides_with_the_other_watchdog() -> None:
    """PyPI's watchdog has modules of these names, and python-daemon imports as `daemon`."""
    taken = {"events", "version", "__main__", "watchmedo", "observers", "utils", "tricks", "daemon"}
    assert not taken & {path.stem for path in PACKAGE.iterdir()}
