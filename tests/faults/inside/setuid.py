"""A daemon of nobody, whose agent becomes a setuid-root helper. usage: setuid (as root)

The helper ignores TERM. One keeps its caller's uid as its real one (as passwd does): kill(2) lets its owner signal it.
The other becomes root whole (as sudo does): nobody may not.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.inside.changed import NOBODY
from tests.faults.private import cannot_be_ended, is_closed, running, temp_dir
from tests.world import alive, wait_for

HELPER = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{become}
open({directory!r} + '/up.new', 'w').write(str(os.getpid()))
os.rename({directory!r} + '/up.new', {directory!r} + '/up')
while not os.path.exists({directory!r} + '/enough'):
    time.sleep(0.05)
"""


def as_root() -> None:
    """Make the helper, a Python that is setuid, and go on as nobody."""
    with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        helper = Path(directory, "helper")
        shutil.copy(os.path.realpath(sys.executable), helper)
        helper.chmod(0o4755)
        ids = ["--reuid", str(NOBODY.pw_uid), "--regid", str(NOBODY.pw_gid), "--clear-groups"]
        subprocess.run(
            ["setpriv", *ids, sys.executable, "-m", "tests.faults.inside.setuid", str(helper)], check=True, timeout=100
        )


def as_nobody(helper: str) -> None:
    """One kind after the other."""
    for become in ("", "os.setresuid(0, 0, 0)"):
        with running(kill={"grace_seconds": 0.5, "verify_seconds": 2}) as world:
            code = HELPER.format(become=become, directory=str(world.dir))
            # Registered first: a process in a setuid program is nobody's to register.
            starts = f"import os, time\nwhile not os.path.exists({str(world.dir / 'go')!r}): time.sleep(0.01)\n"
            starts += f"os.execv({helper!r}, {[helper, '-I', '-c', code]!r})"
            agent = world.registered("caller", "/usr/bin/python3", "-I", "-c", starts, temp_dir=temp_dir(world))
            (world.dir / "go").touch()
            wait_for((world.dir / "up").exists, "the helper runs")
            pid = int((world.dir / "up").read_text())
            assert pid == agent.pid
            if become:
                cannot_be_ended(world, "caller", pid, "not_permitted")
                (world.dir / "enough").touch()
                is_closed(world, "caller", signalled=False)
            else:
                world.cli("kill", "caller")
                assert not alive(pid)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        as_root()
        print("{}")
    else:
        as_nobody(sys.argv[1])
