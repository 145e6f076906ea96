"""Only one place sends signals to others (invariant 1): every way that Python has to send one, looked for in all code.

The exceptions are few, each for its own child or for itself; each has its reason here. What runs is looked at too:
tests/faults/crash, under strace.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "watchdog"
FILES = sorted(PACKAGE.rglob("*.py"))

# (file, function): why it may. Whoever adds a line here has to say whom else the signal could reach.
ALLOWED = {
    ("processes/signals.py", "send"): "the one that all go through: pidfd, identity and guard first",
    ("processes/signals.py", "kill_cgroup"): "a frozen cgroup of the agent's own, after each in it passed the same",
    (
        "cli/run/wrapper.py",
        "_forward",
    ): "`run` to its agent, its own child and not waited for yet: the pid is still its own",
    ("cli/run/wrapper.py", "_send_sigio"): "`run` asks for SIGIO to itself",
    ("cli/run/child.py", "stop_like"): "`run` to itself, and KILL to its own child, the watcher",
    ("cli/run/child.py", "die_of"): "`run` to itself",
    ("cli/run/child.py", "_watcher"): "the watcher to `run`, its parent, looked at right before",
    ("cli/run/prctl.py", ""): "the name of the constant",
    ("cli/run/prctl.py", "die_with_parent"): "asks the kernel for a signal to itself",
    ("owner/bounded_child.py", ""): "the name of the constant",
    ("owner/bounded_child.py", "die_with_parent"): "asks the kernel for a signal to itself",
    ("owner/bounded_child.py", "_end_all"): "a hook's helper to its own children, none of them waited for yet",
    ("owner/bounded_child.py", "end"): "a helper to its own child, which it has not waited for yet",
    ("owner/bounded_child.py", "end_strays"): "a shared helper to its own children, none of them waited for yet",
    ("owner/confinement.py", "landlock_abi"): "landlock alone, by its number",
    ("owner/confinement.py", "fence"): "the same",
    ("owner/confinement.py", "_allow"): "the same",
    ("owner/terminals/client.py", "_read"): "a helper to its own child, the keeper of one program, not waited for yet",
    ("processes/reader.py", "_give_up"): "its own child, which it has not waited for",
    ("helpers/pool.py", "_buried"): "`Child.kill`: our own child, a helper, not reaped yet",
    ("host/children.py", "kill"): "our own child; Popen looks whether it has ended before it sends",
    ("host/children.py", "start"): "the same: a child that could not be wired",
    ("host/children.py", "finished"): "the same: `Child.kill`, not reaped yet",
    ("host/children.py", "_give_up"): "the same, by the thread that has started it and reaps it",
    (
        "helpers/transient_units.py",
        "end",
    ): "systemd ends a unit that we started under a name of our own; and our own child",
    ("cli/doctor.py", "_look_at_kernel"): "system calls on descriptor -1: whether the kernel has them",
    ("cli/doctor.py", "_called"): "the same",
    ("cli/doctor.py", "_landlock_abi"): "landlock alone, by its number",
    ("owner/paths.py", "_openat2"): "openat2 alone, by its number",
    ("kill/terminate.py", "_act"): "`CgroupFreezer.kill`, which goes through `signals.kill_cgroup`",
}
SENDERS = frozenset(
    re.findall(
        r"\w+",
        "killpg pidfd_send_signal pthread_kill raise_signal send_signal terminate tgkill tkill sigqueue rt_sigqueueinfo"
        " syscall killall set_pdeathsig",
    )
)
CONSTANTS = re.compile(r"(PR_)?SET_PDEATHSIG|F_SETOWN(_EX)?|F_SETSIG|TIOCSTI|SYS_t?g?kill")
PROGRAMS = re.compile(r"(.*/)?(kill|pkill|killall5?|skill|snice|fuser|xkill)")
MANAGERS = re.compile(r"(.*/)?(systemctl|busctl|loginctl|machinectl|docker|podman|tmux|supervisorctl)")
SHELLS = frozenset({"system", "popen", "create_subprocess_shell", "getoutput", "getstatusoutput"})
CGROUP = re.compile(r"cgroup\.kill")
NUMBERS = {62, 129, 200, 234, 297, 424}  # kill rt_sigqueueinfo tkill tgkill rt_tgsigqueueinfo pidfd_send_signal, x86-64


def ways(tree: ast.AST) -> Iterator[tuple[str, int, str]]:
    """(innermost function, line, what) for all that could send a signal."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }

    functions: dict[int, str] = {}
    for node in ast.walk(tree):  # outer ones come first, so the innermost stays
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions |= {id(inner): node.name for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(
            node,
            ast.Attribute | ast.Name | ast.Import | ast.ImportFrom | ast.Call | ast.Constant | ast.List | ast.Tuple,
        ):
            for what in _here(node, docstrings):
                yield functions.get(id(node), ""), getattr(node, "lineno", 0), what


def _here(node: ast.AST, docstrings: set[int]) -> Iterator[str]:
    match node:
        case ast.Attribute(value=base, attr=name) if name in SENDERS or CONSTANTS.fullmatch(name):
            yield ast.unparse(base) + "." + name
        case ast.Attribute(value=ast.Name(id="os" | "signal" | "signals"), attr="kill"):
            yield "os.kill, called or passed on"
        case ast.Name(id=name) if name in SENDERS or CONSTANTS.fullmatch(name):
            yield name
        case ast.ImportFrom(names=names) | ast.Import(names=names):
            for alias in names:
                if isinstance(node, ast.ImportFrom) and _is_module(node.module or "", alias.name):
                    continue  # `kill` is a verb and its module, too
                if alias.name in SENDERS | {"kill"} or (alias.name in ("os", "signal") and alias.asname):
                    yield f"import of {alias.name} as {alias.asname}" if not _usual(alias) else ""
        case ast.Call(func=ast.Attribute(attr="kill") as func):
            yield ast.unparse(func) + "()"
        case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]):
            if name in SENDERS | {"kill"}:
                yield f"getattr {name}"
        case ast.Call(func=func) if _called(func) in SHELLS or _shell(node):
            yield f"a shell: {ast.unparse(func)}"
        case ast.Call(func=func, args=[ast.Constant(value=int(number)), *_]) if "call" in _called(func):
            if number in NUMBERS:
                yield f"system call {number}"
        case ast.Constant(value=str(text)) if id(node) not in docstrings and CGROUP.search(text):
            yield f"the file {text}"
    yield from _argv(node)


def _is_module(package: str, name: str) -> bool:
    return package.startswith("watchdog.") and (PACKAGE.parent / package.replace(".", "/") / f"{name}.py").is_file()


def _usual(alias: ast.alias) -> bool:
    return alias.name == "signal" and alias.asname == "signals"


def _argv(node: ast.AST) -> Iterator[str]:
    """A program that signals, as the first word of a command, or a manager that is told to kill."""
    starts = isinstance(node, ast.Call) and re.search(r"run|open|exec|spawn|call|output", _called(node.func))
    words = node.elts if isinstance(node, ast.List | ast.Tuple) else node.args if isinstance(node, ast.Call) else []
    if isinstance(node, ast.Call) and not starts:
        return
    texts = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    if not texts or not isinstance(words[0], ast.Constant):
        return
    if starts and PROGRAMS.fullmatch(texts[0]):
        yield f"the program {texts[0]}"
    if PROGRAMS.fullmatch(texts[0]) and any(re.match(r"-(\d+|[A-Z]+|s)$", text) for text in texts[1:]):
        yield f"the program {texts[0]}"
    if MANAGERS.fullmatch(texts[0]) and any(
        text in ("kill", "stop", "KillUnit", "kill-session", "kill-pane") for text in texts
    ):
        yield f"{texts[0]} kill"


def _called(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _shell(node: ast.Call) -> bool:
    return any(key.arg == "shell" and ast.unparse(key.value) != "False" for key in node.keywords)


def found(text: str) -> list[tuple[str, int, str]]:
    return [(function, line, what) for function, line, what in ways(ast.parse(text)) if what]


def test_nobody_else_sends_a_signal() -> None:
    """By any name, alias, system call, program, service manager or file of a cgroup; and no exception is left over."""
    there = {
        (str(path.relative_to(PACKAGE)), function): f"{path}:{line} can send a signal: {what}"
        for path in FILES
        for function, line, what in found(path.read_text())
    }
    assert [words for where, words in there.items() if where not in ALLOWED] == []
    assert set(ALLOWED) == set(there)


@pytest.mark.parametrize(
    "code",
    [
        "os.kill(pid, 9)",
        "end = os.kill",
        "from os import kill",
        "import os as o",
        "os.killpg(1, 9)",
        "signal.pidfd_send_signal(fd, 9)",
        "send = signal.pidfd_send_signal",
        "signal.pthread_kill(ident, 9)",
        "getattr(os, 'kill')(pid, 9)",
        "process.send_signal(9)",
        "process.terminate()",
        "psutil.Process(pid).kill()",
        "ctypes.CDLL(None).kill(pid, 9)",
        "ctypes.CDLL(None).syscall(62, pid, 9)",
        "libc.tgkill(a, b, 9)",
        "subprocess.run(['kill', '-9', str(pid)])",
        "subprocess.run(('/usr/bin/pkill', '-9', name))",
        "await asyncio.create_subprocess_exec('kill', str(pid))",
        "argv = ['systemctl', 'kill', unit]",
        "argv = ['tmux', 'kill-pane', '-t', pane]",
        "os.system(command)",
        "subprocess.run(command, shell=True)",
        "await asyncio.create_subprocess_shell(command)",
        "write(path + '/cgroup.kill', '1')",
        "open(f'{path}/cgroup.kill', 'w')",
        "prctl(PR_SET_PDEATHSIG, 9)",
        "fcntl.fcntl(fd, fcntl.F_SETOWN, pid)",
    ],
)
def test_each_way_is_seen(code: str) -> None:
    """A proof that overlooks one proves nothing."""
    assert found(f"async def f():\n    {code}" if "import" not in code else code)


@pytest.mark.parametrize(
    "code",
    ["settings.kill.parallel", "Step.KILL", "parser.add_parser('kill')", "('kill', 'stop')", "subprocess.run(['git'])"],
)
def test_words_are_no_signals(code: str) -> None:
    """The verb, the section of the configuration."""
    assert not found(code)
