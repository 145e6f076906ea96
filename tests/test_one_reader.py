"""Only bounded functions read files of single processes: such a read may hang for ever, and in the daemon it would be
the event loop's.

What looks like a path below /proc/PID is looked for in all code of the daemon. Each place has its reason here: it is
made inside `bounded.Reading`, is a system call that takes no lock of that process, or is text. The owner's helper and
the client are programs of their own, which the daemon gives up.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "watchdog"
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] not in ("owner", "cli")]

INSIDE = "inside `Reading`"
NO_LOCK = "stat(2) of its directory, or of a link in it: takes no lock that an execve holds"
TEXT = "text, no path that is opened"

# (file, function): why it may.
ALLOWED = {
    ("processes/procfs.py", "read_of"): INSIDE,
    ("processes/procfs.py", "living_thread"): INSIDE,
    ("processes/procfs.py", "program_file"): INSIDE,
    ("processes/procfs.py", "environ"): INSIDE,
    ("processes/snapshot.py", "_ports"): INSIDE,
    ("processes/table.py", "_row"): INSIDE,
    ("processes/table.py", "_with_details"): INSIDE,
    ("processes/table.py", "_service"): INSIDE,
    ("processes/clients.py", "_directory"): INSIDE,
    ("processes/clients.py", "_uid"): NO_LOCK,
    ("processes/occupants.py", "_uid"): NO_LOCK,
    ("processes/occupants.py", "of"): INSIDE,
    ("processes/occupants.py", "_uses"): INSIDE,
    ("processes/occupants.py", "_is_set_id"): INSIDE,
    ("processes/occupants.py", "_led_to"): INSIDE,
    ("processes/identity.py", "pid_namespace"): NO_LOCK,
    ("processes/reader_main.py", "uid_of"): NO_LOCK,
    ("processes/reader_main.py", "hung"): NO_LOCK,
    ("kill/pinned_tree.py", "unseen"): NO_LOCK,
    ("processes/channels.py", "_holds"): INSIDE,
    ("processes/channels.py", "_is_one"): INSIDE,
    ("processes/channels.py", "_network_namespace"): NO_LOCK,
    ("processes/permission.py", "_user_namespace"): NO_LOCK,
    ("processes/procfs.py", "status_value"): TEXT,
    ("service/status.py", "facts"): TEXT,
    ("sweep/stats.py", "unreadable"): TEXT,
    ("sweep/process_watch.py", "presence"): TEXT,
}
FILE = r"stat|status|environ|cmdline|cgroup|maps|task|fd|io|exe|cwd|root|comm"
PER_PROCESS = re.compile(rf"(/proc/\{{\}}|\{{\}}/({FILE})\b(?!\.))")


def paths(tree: ast.AST) -> Iterator[tuple[str, int, bool]]:
    """(innermost function, line, whether inside `Reading`) of all that looks like a path of one process's file."""
    functions: dict[int, str] = {}
    inside: set[int] = set()
    for node in ast.walk(tree):  # outer ones come first, so the innermost stays
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions |= {id(inner): node.name for inner in ast.walk(node)}
        if isinstance(node, ast.With) and any("Reading(" in ast.unparse(item.context_expr) for item in node.items):
            inside |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.BinOp | ast.Call) and PER_PROCESS.match(_template(node)):
            yield functions.get(id(node), ""), node.lineno, id(node) in inside


def _template(node: ast.AST) -> str:
    """The text of an expression, with {} for what is put in; PROC is /proc."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(_template, values))
        case ast.BinOp(left=left, op=ast.Add() | ast.Div(), right=right):
            return f"{_template(left)}{'/' if isinstance(node.op, ast.Div) else ''}{_template(right)}"
        case (
            ast.Call(func=ast.Attribute(attr="join" | "joinpath"), args=args)
            | ast.Call(func=ast.Name(id="Path"), args=args)
        ):
            return "/".join(map(_template, args))
        case ast.FormattedValue(value=value):
            return _template(value)
        case ast.Name(id="PROC") | ast.Attribute(attr="PROC"):
            return "/proc"
    return "{}"


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_files_of_one_process_are_read_by_bounded_functions_alone(path: Path) -> None:
    """Anywhere else it would be the event loop's read, or a thread's that nobody can give up."""
    name = str(path.relative_to(PACKAGE))
    for function, line, inside in paths(ast.parse(path.read_text())):
        reason = ALLOWED.get((name, function))
        assert reason is not None, f"{path}:{line}: {function} reads a file of one process; use `processes.procfs`"
        assert inside or reason != INSIDE, f"{path}:{line}: {function} reads it outside of `bounded.Reading`"


def test_no_exception_is_left_over() -> None:
    """Each is there."""
    found = {
        (str(path.relative_to(PACKAGE)), function)
        for path in FILES
        for function, _, _ in paths(ast.parse(path.read_text()))
    }
    assert set(ALLOWED) == found


def test_nobody_reads_by_psutil() -> None:
    """It opens the same files, and cannot be told which hang."""
    for path in FILES:
        assert "psutil" not in path.read_text(), path


@pytest.mark.parametrize(
    "code",
    [
        "open(f'/proc/{pid}/stat')",
        "os.listdir(f'{procfs.PROC}/{pid}/task')",
        "os.readlink('/proc/' + str(pid) + '/exe')",
        "read(f'{pid}/environ', dir_fd=proc)",
        "Path('/proc', str(pid), 'stat').read_bytes()",
        "os.path.join(PROC, str(pid), 'cgroup')",
        "(Path('/proc') / str(pid) / 'maps').read_text()",
    ],
)
def test_each_way_is_seen(code: str) -> None:
    """A proof that overlooks one proves nothing."""
    assert list(paths(ast.parse(f"def f():\n    {code}")))


@pytest.mark.parametrize("code", ["open('/proc/self/mountinfo')", "read('/proc/loadavg')", "f'{a}/{b}'"])
def test_what_is_the_systems_or_ours_is_none(code: str) -> None:
    """Nobody else can make these hang."""
    assert not list(paths(ast.parse(f"def f():\n    {code}")))
