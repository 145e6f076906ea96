"""The faults of SQLite's files. Each is undone again at the end of its block."""

import fcntl
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.faults.registry.story import End, Fault
from tests.world import World, wait_for
from watchdog.registry.schema import REVISION


def registry(world: World) -> Path:
    return world.state / "registry.db"


def by_hand(world: World, *statements: str) -> list[tuple[object, ...]]:
    """Somebody with sqlite3; what the last statement answers."""
    with closing(sqlite3.connect(registry(world), isolation_level=None, timeout=30)) as other:
        return [other.execute(statement).fetchall() for statement in statements][-1]


# -- the file, its neighbours, its directory


@contextmanager
def aside(world: World) -> Iterator[None]:
    """The file is gone, and back."""
    kept = world.dir / "aside"
    registry(world).rename(kept)
    yield
    registry(world).unlink(missing_ok=True)
    kept.rename(registry(world))


@contextmanager
def replaced(world: World, make: Callable[[Path], object]) -> Iterator[None]:
    """Something else lies in its place."""
    with aside(world):
        make(registry(world))
        yield
        if registry(world).is_dir():
            registry(world).rmdir()


@contextmanager
def directory_aside(world: World, make: Callable[[Path], object] | None = None) -> Iterator[None]:
    """Its directory is gone, or another one lies there."""
    kept = world.dir / "kept"
    world.state.rename(kept)
    if make is not None:
        make(world.state)
    yield
    if make is not None:
        shutil.rmtree(world.state)
    kept.rename(world.state)


@contextmanager
def removed(world: World, *suffixes: str) -> Iterator[None]:
    """Somebody tidied up: for good."""
    for suffix in suffixes:
        Path(f"{registry(world)}{suffix}").unlink()
    yield


@contextmanager
def neighbour_aside(world: World, suffix: str) -> Iterator[None]:
    """Moved away, and put back over what the daemon has made instead."""
    path, kept = Path(f"{registry(world)}{suffix}"), world.dir / "neighbour"
    path.rename(kept)
    yield
    shutil.move(kept, path)


@contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    """chmod, and back."""
    before = path.stat().st_mode & 0o777
    path.chmod(bits)
    yield
    path.chmod(before)


# -- what is in it


@contextmanager
def locked(world: World, how: str) -> Iterator[None]:
    """Somebody stopped inside a transaction, for longer than the busy timeout (the daemon says it after that)."""
    other = sqlite3.connect(registry(world), isolation_level=None, timeout=30)
    other.execute(how)
    yield
    other.execute("ROLLBACK")
    other.close()


@contextmanager
def locked_for_reading(world: World) -> Iterator[None]:
    """Every lock of the -shm (bytes 120 to 127: write, checkpoint, recover, five readers) is somebody else's."""
    with Path(f"{registry(world)}-shm").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 8, 120)
        yield


@contextmanager
def changed(world: World, do: str, undo: str) -> Iterator[None]:
    """Somebody changed the schema by hand, or another version did."""
    by_hand(world, do)
    yield
    by_hand(world, undo)


@contextmanager
def dropped(world: World, table: str) -> Iterator[None]:
    """A table is gone, and made again as it was, empty."""
    with closing(sqlite3.connect(registry(world))) as other:
        query = "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL ORDER BY type DESC"
        made = [sql for (sql,) in other.execute(query, (table,))]
    by_hand(world, f"DROP TABLE {table}")
    yield
    by_hand(world, *made)


@contextmanager
def damaged(world: World, table: str, damage: Callable[[bytes], bytes], *, rest: bool = False) -> Iterator[None]:
    """The root page of a table reads otherwise (with `rest`: it and all behind it are cut off).

    Nobody caches the page any more, as somebody else has committed since; and nobody can write it while it is broken.
    """

    def checkpointed() -> bool:
        busy, frames, done = by_hand(world, "PRAGMA wal_checkpoint(TRUNCATE)")[0]
        return busy == 0 and frames == done

    wait_for(checkpointed, "nobody reads or writes")
    ((size,),) = by_hand(world, "PRAGMA page_size")
    ((root,),) = by_hand(world, f"SELECT rootpage FROM sqlite_master WHERE name = '{table}'")
    assert isinstance(size, int)
    assert isinstance(root, int)
    where = (root - 1) * size
    descriptor = os.open(registry(world), os.O_RDWR)
    try:
        good = os.pread(descriptor, 1 << 24 if rest else size, where)
        if rest:
            os.ftruncate(descriptor, where)
        else:
            os.pwrite(descriptor, damage(good), where)
        with suppress(sqlite3.DatabaseError):
            by_hand(world, "UPDATE alembic_version SET version_num = version_num")
        yield
        for start in range(0, len(good), size):
            if start == 0 or not os.pread(descriptor, size, where + start).strip(b"\0"):  # else written anew since
                os.pwrite(descriptor, good[start : start + size], where + start)
        with suppress(sqlite3.DatabaseError):
            by_hand(world, "UPDATE alembic_version SET version_num = version_num")
    finally:
        os.close(descriptor)


# -- the disk


@contextmanager
def small_disk(world: World) -> Iterator[None]:
    """The state directory on a file system of its own: ext4 in a file. Unmounted when the daemon has ended."""
    image = world.dir / "disk"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-e", "remount-ro", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, world.state], check=True)
    try:
        world.state.chmod(0o700)
        yield
    finally:
        world.close()
        while world.state.is_mount():
            subprocess.run(["umount", "--lazy", world.state], check=True)


@contextmanager
def full(world: World) -> Iterator[None]:
    """ENOSPC, until somebody makes room. What is committed meanwhile is in the write-ahead log's own room."""
    ballast = world.state / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 4096)
    yield
    ballast.unlink()


@contextmanager
def fuller(world: World) -> Iterator[None]:
    """The same with all used up that is kept for that: the reserve, and the room in the write-ahead log."""
    (world.state / "reserve").unlink()
    with full(world):
        row = "VALUES (datetime('now'), 'test.ballast', 't', hex(randomblob({})))"
        for size in (2000, 50):
            with suppress(sqlite3.OperationalError):
                while True:
                    by_hand(world, f"INSERT INTO lifecycle_event (at, event, who, why) {row.format(size)}")
        yield


@contextmanager
def remounted(world: World) -> Iterator[None]:
    """The kernel found an error and made the file system read-only under us (ext4's errors=remount-ro).

    Nobody can take that back while the daemon has files open there: it is stopped, the disk checked and mounted anew.
    """
    source = subprocess.run(["findmnt", "-no", "SOURCE", world.state], check=True, capture_output=True, text=True)
    device = source.stdout.strip()
    # What a sweep wrote (synchronous=NORMAL) may be lost with the disk: a promise among it, which spares its agent.
    wait_for(
        lambda: by_hand(world, "SELECT promised FROM agent_lifecycle WHERE name = 'mute'") == [(1,)], "its promise"
    )
    by_hand(world, "PRAGMA synchronous=FULL", "UPDATE alembic_version SET version_num = version_num")
    Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("test\n")
    with pytest.raises(OSError, match="Read-only file system"):
        (world.state / "new").touch()
    yield
    assert world.stop() == 0
    subprocess.run(["umount", world.state], check=True)
    subprocess.run(["fsck.ext4", "-fy", world.dir / "disk"], check=False, capture_output=True)  # 1: mended
    subprocess.run(["mount", "-o", "loop", world.dir / "disk", world.state], check=True)
    world.start()


@contextmanager
def mounted_over(world: World) -> Iterator[None]:
    """A copy of the disk, with the same inodes, is mounted in its place, and unmounted again."""
    shutil.copy(world.dir / "disk", world.dir / "copy")
    subprocess.run(["mount", "-o", "loop", world.dir / "copy", world.state], check=True)
    yield
    subprocess.run(["umount", world.state], check=True)


@contextmanager
def unwritable(world: World, *names: str) -> Iterator[None]:
    """Immutable files: ext4 refuses writes also of those who have them open (EPERM)."""
    paths = [f"{registry(world)}{name}" for name in names]
    subprocess.run(["chattr", "+i", *paths], check=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *paths], check=True)


WORDS = "no database\n" * 500
FAULTS: list[Fault[World]] = [
    Fault("deleted", aside),
    Fault("replaced by an empty file", lambda w: replaced(w, lambda path: path.touch(0o600))),
    Fault("replaced by text", lambda w: replaced(w, lambda path: path.write_text(WORDS))),
    Fault("replaced by a copy", lambda w: replaced(w, lambda path: shutil.copy(w.dir / "aside", path))),
    Fault("replaced by a directory", lambda w: replaced(w, lambda path: path.mkdir())),
    Fault("replaced by a FIFO", lambda w: replaced(w, os.mkfifo)),
    Fault("replaced by a link to nothing", lambda w: replaced(w, lambda path: path.symlink_to("/nowhere"))),
    Fault("its directory deleted", directory_aside),
    Fault("its directory replaced", lambda w: directory_aside(w, lambda path: path.mkdir(0o700))),
    Fault("its directory closed (chmod 0)", lambda w: mode(w.state, 0), root=False),
    Fault("closed (chmod 0)", lambda w: mode(registry(w), 0), End.UNSEEN, root=False),
    Fault("-wal deleted", lambda w: removed(w, "-wal"), End.BRIEF),
    Fault("-shm deleted", lambda w: removed(w, "-shm"), End.BRIEF),
    Fault("-wal and -shm deleted", lambda w: removed(w, "-wal", "-shm"), End.BRIEF),
    Fault("locked for writing", lambda w: locked(w, "BEGIN IMMEDIATE")),
    Fault("locked exclusively", lambda w: locked(w, "BEGIN EXCLUSIVE")),
    Fault("locked for reading", locked_for_reading),
    Fault("a page of zeros", lambda w: damaged(w, "kill_request", lambda page: bytes(len(page)))),
    Fault("a page of noise", lambda w: damaged(w, "kill_request", lambda page: bytes(255 - byte for byte in page))),
    Fault("truncated", lambda w: damaged(w, "operator_hold", lambda page: page, rest=True)),
    Fault("disk full", full, End.UNSEEN, ready=small_disk, root=True),
    Fault("disk full, its reserve used up", fuller, ready=small_disk, root=True),
    Fault("read-only (remounted by the kernel)", remounted, End.RESTART, ready=small_disk, root=True),
    Fault("a copy of its disk mounted over it", mounted_over, ready=small_disk, root=True),
    Fault("read-only (immutable files)", lambda w: unwritable(w, "", "-wal"), ready=small_disk, root=True),
    Fault(
        "a newer revision",
        lambda w: changed(
            w,
            "UPDATE alembic_version SET version_num = '9999'",
            f"UPDATE alembic_version SET version_num = '{REVISION}'",
        ),
    ),
    Fault("a table dropped", lambda w: dropped(w, "operator_hold")),
    Fault(
        "a table renamed",
        lambda w: changed(w, "ALTER TABLE kill_request RENAME TO lost", "ALTER TABLE lost RENAME TO kill_request"),
    ),
    Fault(
        "the agents' table renamed",
        lambda w: changed(
            w, "ALTER TABLE agent_lifecycle RENAME TO lost", "ALTER TABLE lost RENAME TO agent_lifecycle"
        ),
    ),
    Fault(
        "a column renamed",
        lambda w: changed(
            w,
            "ALTER TABLE agent_lifecycle RENAME COLUMN silence_seconds TO lost",
            "ALTER TABLE agent_lifecycle RENAME COLUMN lost TO silence_seconds",
        ),
    ),
]
