"""Root sees whose process uses a place, of whatever uid; an owner's own are left to the owner's helper."""

import os
import sys
from pathlib import Path

import pytest

from tests.processes.conftest import Family, needs_root
from watchdog.owner.occupancy import place
from watchdog.processes import bounded
from watchdog.processes.bounded import Hung
from watchdog.processes.occupants import OccupiedPlace, users_of

OWNER = 12003  # of the place; we are another uid
READY = "print('ready', flush=True); sys.stdin.read()"


def there(path: Path, *, by_name: bool = False, open_: bool = True) -> OccupiedPlace:
    """The place as its owner's helper names it."""
    told = place(str(path))
    assert told is not None
    assert isinstance(told["born"], int | None)
    where = str(told["device"]), str(told["inside"])
    return OccupiedPlace(str(told["path"]), OWNER, *where, told["born"], open_, by_name, writable=True)


def user(where: OccupiedPlace) -> str | None:
    return users_of((where,), frozenset({os.getpid()})).get(where.path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "wt"
    made.mkdir()
    (made / "file").write_bytes(bytes(8192))
    return made


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("os.chdir(T)", "cwd"),
        ("f = open(T + '/file')", "open file"),
        (
            "f = open(T + '/file', 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); os.closerange(3, 50)",
            "mapped file",
        ),
    ],
)
def test_each_kind_of_use_is_seen(family: Family, tree: Path, code: str, kind: str) -> None:
    """Case P11: root's shell, root's open file."""
    before = there(tree)
    assert user(before) is None
    child = family.python(f"import mmap, os, sys; T = {str(tree)!r}; {code}; {READY}")
    assert family.line(child) == "ready"
    found = user(before)
    assert found is not None and f"process {child.pid} of uid {os.geteuid()} has its {kind} at {tree}" in found
    assert users_of((before._replace(owner=os.geteuid()),), frozenset()) == {}


def test_a_file_may_be_asked_about_too(family: Family, tree: Path) -> None:
    """The reaper's findings are not all directories."""
    where = there(tree / "file")
    assert user(where) is None
    child = family.python(f"import sys; f = open({str(tree / 'file')!r}); {READY}")
    assert family.line(child) == "ready"
    found = user(where)
    assert found is not None and "open file" in found


def test_who_sits_in_a_former_directory_of_that_name_is_not_here(family: Family, tree: Path) -> None:
    """The reverse: its cwd, program or file was deleted with the tree that lay there before."""
    code = f"""
import os, sys
os.chdir({str(tree)!r})
f = open("file")
os.makedirs("sub"); os.chdir("sub")
print("ready", flush=True)
sys.stdin.read()
"""
    child = family.python(code)
    assert family.line(child) == "ready"
    first = there(tree)
    assert user(first) is not None
    (tree / "file").unlink()
    assert user(first) is not None  # deleted in this one: what it makes there is here
    (tree / "sub").rmdir()
    tree.rmdir()
    tree.mkdir()
    assert user(there(tree)) is None


def test_a_name_in_an_environment_is_use_of_a_temp_dir(family: Family, tree: Path) -> None:
    """Case P18, of another uid; for a worktree, which can be restored, it is none."""
    child = family.start(sys.executable, "-c", f"import sys; {READY}", env={"TMPDIR": str(tree / "sub")})
    assert family.line(child) == "ready"
    assert user(there(tree)) is None
    found = user(there(tree, by_name=True))
    assert found == f"process {child.pid} of uid {os.geteuid()} names it in its environment: TMPDIR"


@needs_root
def test_who_lives_among_other_mounts_has_another_name_for_it(family: Family, tree: Path, tmp_path: Path) -> None:
    """A container of root's."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    script = f"mount --bind {tree} {mounted} && cd {mounted} && echo ready && exec cat"
    child = family.start("unshare", "-m", "--propagation", "private", "sh", "-c", script)
    assert family.line(child) == "ready"
    found = user(there(tree))
    assert found is not None and f"cwd at {mounted}" in found


@needs_root
@pytest.mark.parametrize("kind", ["bind", "overlay"])
def test_a_mount_uses_its_place_in_whatever_namespace(family: Family, tree: Path, tmp_path: Path, kind: str) -> None:
    """A container of root's with the place as its volume, or its root; it works somewhere else."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    how = f"--bind {tree}" if kind == "bind" else f"-t overlay -o lowerdir={tree}:/usr none"
    script = f"mount {how} {mounted} && cd / && echo ready && exec cat"
    child = family.start("unshare", "-m", "--propagation", "private", "sh", "-c", script)
    assert family.line(child) == "ready"
    words = {
        "bind": f"{tree} is mounted at {mounted}",
        "overlay": f"the overlay at {mounted} has its lower directory at {tree}",
    }[kind]
    assert user(there(tree)) == f"{words}, where process {child.pid} of uid 0 lives"


def test_of_one_whose_files_hang_nobody_knows_what_it_uses(
    family: Family, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps what its user can reach."""
    child = family.python(f"import sys; {READY}")
    assert family.line(child) == "ready"
    monkeypatch.setitem(bounded.skipped, (child.pid, "cwd"), Hung(child.pid, "cwd", 0, 0.0))
    found = user(there(tree))
    assert found is not None and "what it uses is not known" in found
    if os.geteuid() != 0:
        assert user(there(tree, open_=False)) is None
