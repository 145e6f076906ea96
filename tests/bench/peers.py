"""Peers, installed into a throw-away directory, each really watching processes. One that is not there is no failure."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

BENCH = Path(os.environ.get("BENCH_DIR", "build/bench"))
NULL = subprocess.DEVNULL


def install() -> None:
    """Bring supervisord, fleet-guard and hcom from PyPI and monit from Debian's archive (unpacked, not installed)."""
    directory = BENCH.absolute()
    if not (directory / "bin/python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        for name in ("setuptools<81", "supervisor", "fleet-guard", "hcom"):
            pip = [str(directory / "bin/pip"), "install", "-q", "--disable-pip-version-check", name]
            subprocess.run(pip, stdout=NULL, stderr=NULL, check=False)
    if not (directory / "monit").exists():
        subprocess.run(["apt-get", "download", "monit"], cwd=directory, stdout=NULL, stderr=NULL, check=False)
        for package in directory.glob("monit*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(directory / "monit")], check=False)


def there(name: str) -> str | None:
    """The program's path, or None."""
    path = (BENCH / ("monit/usr/bin/monit" if name == "monit" else f"bin/{name}")).absolute()
    return str(path) if path.exists() else None


def start(command: list[str], **environ: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env={**os.environ, **environ}, stdin=NULL, stdout=NULL, stderr=NULL)


def monit(directory: Path, pids: list[int]) -> subprocess.Popen[bytes] | None:
    """A look each 10 s at processes by their pid files."""
    program = there("monit")
    if program is None:
        return None
    lines = [
        f"set daemon 10\nset logfile {directory}/m.log\nset idfile {directory}/m.id\nset statefile {directory}/m.st"
    ]
    for pid in pids:
        (directory / f"{pid}.pid").write_text(f"{pid}\n")
        lines.append(f"check process p{pid} with pidfile {directory}/{pid}.pid")
    (directory / "monitrc").write_text("\n".join(lines) + "\n")
    (directory / "monitrc").chmod(0o600)
    return start([program, "-I", "-c", f"{directory}/monitrc", "-p", f"{directory}/monit.pid"])


def fleet_guard(directory: Path, pids: list[int]) -> subprocess.Popen[bytes] | None:
    """A look each 10 s at pids and the mtimes of their logs; its list is written as `watch add` does."""
    program = there("fleet-guard")
    if program is None:
        return None
    state = directory / ".fleet-guard"
    state.mkdir(exist_ok=True)
    log = directory / "quiet.log"
    log.write_text("")
    entry = {"log": str(log), "added": time.time(), "timeout": 86400.0, "session_id": None, "label": ""}
    (state / "watch.json").write_text(json.dumps({str(pid): {"pid": pid, **entry} for pid in pids}))
    return start([program, "daemon", "--interval", "10"], HOME=str(directory))


def supervisord(directory: Path, count: int, *, deaf: bool = False) -> subprocess.Popen[bytes] | None:
    """Starts so many processes of its own and watches them as their parent."""
    program = there("supervisord")
    if program is None:
        return None
    trap = "trap '' TERM INT HUP; " if deaf else ""
    (directory / "s.conf").write_text(
        f"[supervisord]\nlogfile={directory}/s.log\npidfile={directory}/s.pid\nnodaemon=true\nminfds=4096\n"
        f'[program:p]\ncommand=/bin/sh -c "{trap}exec sleep 100000"\nnumprocs={count}\nprocess_name=p%(process_num)d\n'
        "autorestart=false\nstartsecs=0\nstopwaitsecs=2\nstdout_logfile=NONE\nstderr_logfile=NONE\n"
    )
    process = start([program, "-c", f"{directory}/s.conf"])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        log = directory / "s.log"
        if log.exists() and log.read_text().count("spawned:") >= count:
            break
        time.sleep(0.1)
    return process


def hcom_kill(directory: Path, pids: list[int]) -> None:
    """`hcom kill all`, when it believes that it launched these; its list is written as its launcher does."""
    program = there("hcom")
    assert program is not None
    (directory / ".tmp").mkdir()
    entry = {"tool": "claude", "launched_at": time.time(), "directory": str(directory)}
    launched = {str(pid): {**entry, "names": [f"x{number}"]} for number, pid in enumerate(pids)}
    (directory / ".tmp/launched_pids.json").write_text(json.dumps(launched))
    environ = {**os.environ, "HCOM_DIR": str(directory), "HOME": str(directory)}
    subprocess.run([program, "kill", "all"], env=environ, stdin=NULL, stdout=NULL, stderr=NULL, check=False)


def end(process: subprocess.Popen[bytes] | None) -> float:
    """TERM, and how long it took to end."""
    if process is None:
        return 0.0
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return time.monotonic() - began
