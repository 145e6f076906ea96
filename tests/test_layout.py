"""The house rules that a machine can hold: who imports whom, who may do what, what each file says of itself."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests import counts

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


# -- values instead of shared objects ----------------------------------------------------------------------------------

# Modules that assign to fields of another module's objects all the same, each with its reason.
ASSIGN_TO_OTHERS = {
    "cli.doctor": "it fills in `cli.seen.Seen`, and its class says so",
    "cli.events": "an argparse namespace, whose fields nobody declares",
    "cli.run.wrapper": "an argparse namespace",
    "processes.procfs": "ctypes declares the result of a C function so",
    "processes.reader_main": "the reader process sets up the module `bounded` for itself",
    "processes.table": "the reader process tells the module `bounded` what can be read",
    "reaper.reaper": "a leftover's result: `Leftover` is its own list's",
    "reaper.shares": "the registry's set of users over their share",
    "registry.async_registry": "the trouble that `engines` keeps",
    "registry.registry": "the trouble that `engines` keeps",
    "service.main_loop": "wiring: the parts are given what they call",
    "service.signal_flags": "a hook of the interpreter",
    "telemetry.logger": "hooks of the interpreter, and of logging",
}


def targets_of(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to."""
    match node:
        case ast.Assign(targets=targets):
            pass
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            targets = [target]
        case _:
            return []
    return [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]


def fields_declared(nodes: list[ast.AST]) -> set[str]:
    """Fields of the classes of that module: what it may assign to, of whatever object."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            found |= {name_in(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
        for target in targets_of(node):
            if isinstance(target, ast.Attribute) and name_in(target.value) == "self":
                found.add(target.attr)
    return found


def name_in(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def made_here(function: ast.AST) -> set[str]:
    """Names of what is constructed in that function."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and isinstance(node.value, ast.Call):
            targets = [node.target] if isinstance(node, ast.NamedExpr) else targets_of(node)
            found |= {name_in(target) for target in targets}
    return found - {""}


def assigned_to_others(nodes: list[ast.AST]) -> list[tuple[int, str]]:
    """Assignments to fields that no class of the module has, of objects that the function has not made."""
    declared, found = fields_declared(nodes), []
    functions = [one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    for target in [one for node in nodes for one in targets_of(node)]:
        if not isinstance(target, ast.Attribute) or target.attr in declared or name_in(target.value) in ("self", "cls"):
            continue
        around = [one for one in functions if one.lineno <= target.lineno <= (one.end_lineno or 0)]
        if name_in(target.value) not in set[str]().union(*map(made_here, around)):
            found.append((target.lineno, ast.unparse(target)))
    return found


def test_nobody_assigns_to_a_field_of_another_modules_object() -> None:
    """Whoever wants another object to change calls a method of it, whose name says what happens."""
    doing = {name_of(path): shape(path).assigned_to_others for path in FILES}
    for module, found in doing.items():
        assert not found or module in ASSIGN_TO_OTHERS, f"{module}:{found[0][0]} assigns to {found[0][1]}"
    over = [module for module in ASSIGN_TO_OTHERS if not doing.get(module)]
    assert not over, f"take these out of ASSIGN_TO_OTHERS: {over}"


# What is larger than tests/counts.py allows, and why it is one thing.
LARGE = {
    "cli/seen.py: Seen has 40": "what doctor has seen of a machine: a form with a line for each question",
    "core/vendors/vendor.py: Vendor takes 17": "an entry of a table: what is known of one agent program, by name",
}
# Modules below 80 lines with one importer, in their own package, that are no entries of a table of such modules.
FRAGMENTS = {
    "agents/exit.py": "a part of an agent, as `tree` and `heartbeat` are",
    "agents/exit_watcher.py": "pidfds and the event loop; the tracker has words",
    "cli/quoting.py": "what an agent may be told of others' words: for the eyes of security",
    "cli/run/killed.py": "loaded only when an agent was killed: `run` stays small while it lives",
    "cli/run/report.py": "the file that a `run` without a daemon leaves",
    "cli/run/upstream.py": "the socket that a `run` was itself given",
    "owner/credentials.py": "the helper's first act, and its most dangerous one",
    "owner/git/change_seal.py": "by what a change of a tree is seen",
    "owner/session_states.py": "session files of other programs",
    "owner/sources/fleet_members.py": "a file format of its own",
    "owner/sources/sqlite_locks.py": "whom SQLite waits for",
    "owner/terminals/pane_content.py": "what a pane shows, as text",
}
TABLES = ("control/routes/", "core/vendors/", "owner/finders/", "owner/hooks/", "owner/terminals/wezterm.py")


@dataclass(frozen=True)
class Shape:
    """What is looked at of a file's assignments."""

    assigned_to_others: tuple[tuple[int, str], ...]


@cache
def shape(path: Path) -> Shape:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    return Shape(tuple(assigned_to_others(nodes)))


@cache
def house() -> counts.Tree:
    return counts.Tree(PACKAGE.parent)


def test_classes_and_functions_are_of_a_size_to_be_read() -> None:
    """A class has 15 public methods at most, a mutable dataclass 15 fields, a constructor 7 arguments, a function 60
    lines; a migration is a list of statements. What is larger stands in LARGE with its size and the reason.
    """
    tree = house()
    large = [*tree.wide_constructors(), *tree.wide_classes(), *tree.wide_dataclasses(), *tree.long_functions()]
    assert sorted(large) == sorted(LARGE), "see LARGE in tests/test_layout.py"


def test_no_module_is_a_fragment_of_another() -> None:
    """What is small and serves one neighbour stands in that one, or in FRAGMENTS with the reason."""
    fragments = [one.split(":")[0] for one in house().fragments()]
    assert sorted(one for one in fragments if not one.startswith(TABLES)) == sorted(FRAGMENTS)


def test_names_are_used_once_and_imports_make_no_circle() -> None:
    """A class is found by its name alone, and each module can be loaded by itself."""
    assert house().repeated_names() == []
    assert house().circles() == []


def test_each_module_has_its_twin_or_says_where_its_tests_are() -> None:
    """`kill/worker.py` has tests/kill/test_worker.py; else its docstring ends with `Tests: tests/...`."""
    assert house().without_twin() == []
