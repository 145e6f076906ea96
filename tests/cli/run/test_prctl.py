"""prctl(2) for `run`, in processes of its own: what the kernel says afterwards."""

import subprocess
import sys


def said(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"from watchdog.cli.run import prctl\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_each_option_is_set() -> None:
    """PR_GET_*, and the name as `ps` reads it."""
    code = """
import ctypes
libc = ctypes.CDLL(None)
found = ctypes.c_int(-1)
def asked(option):
    assert libc.prctl(option, ctypes.byref(found), 0, 0, 0) == 0
    return found.value
print(asked(37), asked(2), libc.prctl(3, 0, 0, 0, 0))
print(prctl.become_subreaper(), prctl.die_with_parent(), prctl.leave_core(False), prctl.set_name())
print(asked(37), asked(2), libc.prctl(3, 0, 0, 0, 0), open("/proc/self/comm").read())
print(prctl.leave_core(True), libc.prctl(3, 0, 0, 0, 0))
"""
    assert said(code) == ["0", "0", "1", "True", "True", "True", "True", "1", "9", "0", "agent-watchdog", "True", "1"]


def test_an_option_that_the_kernel_does_not_have_is_said() -> None:
    """Nothing is raised: `run` works without."""
    assert said("print(prctl.prctl(10_000, 0))") == ["False"]


def test_an_interpreter_without_ctypes_has_none_of_them() -> None:
    """Nor does that raise."""
    code = "import sys; sys.modules['_ctypes'] = None\nprint(prctl.become_subreaper(), prctl.set_name())"
    assert said(code) == ["False", "False"]
