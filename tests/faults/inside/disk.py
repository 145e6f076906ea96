"""An agent that writes to a frozen file system is in D state. usage: disk TIMES

In a mount namespace of its own: an ext4 in a file, mounted by a loop device.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.private import UP, cannot_be_ended, is_closed, running, start, temp_dir
from tests.world import wait_for

WRITES = """
with open(FILE, "wb", buffering=0) as file:
    while True:
        file.seek(0)
        file.write(b"x" * 4096)
        os.fsync(file.fileno())
"""


def call(*argv: str | Path) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def file_system() -> Iterator[Path]:
    """The directory where it is mounted."""
    with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp") as directory:
        image, place = Path(directory, "image"), Path(directory, "mounted")
        image.write_bytes(bytes(16 << 20))
        place.mkdir()
        call("mkfs.ext4", "-q", image)
        call("mount", "-o", "loop", image, place)
        try:
            yield place
        finally:
            call("umount", place)


@contextmanager
def frozen(place: Path) -> Iterator[None]:
    """Every write waits, and cannot be interrupted."""
    call("fsfreeze", "--freeze", place)
    try:
        yield
    finally:
        call("fsfreeze", "--unfreeze", place)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def once() -> str:
    with file_system() as place, running(kill={"grace_seconds": 0.5, "verify_seconds": 2}) as world:
        options = ("--temp-dir", temp_dir(world))
        pid = start(world, "writer", f"FILE = {str(place / 'file')!r}{UP}{WRITES}", options=options)
        with frozen(place):
            wait_for(lambda: state(pid) == "D", "it is in D state")
            reason = cannot_be_ended(world, "writer", pid, "d_state")
        is_closed(world, "writer")
    return reason


if __name__ == "__main__":
    print(json.dumps({"reason": [once() for _ in range(int(sys.argv[1]))][-1]}))
