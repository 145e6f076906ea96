"""Agents of an orchestrator that only knows SQL: they beat by UPDATE, by a file of their own, or not at all.

orchestrated.py DB ID [beat=SECONDS] [beats=N] [until=PATH] [zone=NAME] [stop=inside|commit] [file=PATH] [deaf] [wait]

`until`: beats no more once that file is there. `zone`: its beats are nothing but times, in that zone, and its
environment does not tell which that is.
`wait`: for a line on its input, before anything else.
`stop=inside`: after its beats it stops itself between an UPDATE and its COMMIT, and holds the lock of all writers.
`stop=commit`: likewise within COMMIT, and holds that of all readers; half of it is written, and a journal lies there.
"""

import contextlib
import json
import os
import signal
import sqlite3
import sys
import time
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

BEAT = "UPDATE agent_lifecycle SET last_heartbeat = ? WHERE agent_id = ?"


def main() -> None:
    path, agent_id, *options = sys.argv[1:]
    told = dict(option.partition("=")[::2] for option in options)
    if "deaf" in told:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "wait" in told:
        sys.stdin.readline()
    zone = ZoneInfo(told["zone"]) if "zone" in told else None
    number = 0
    while number < int(told.get("beats", 1_000_000)) and not ("until" in told and Path(told["until"]).exists()):
        time.sleep(float(told.get("beat", 1_000_000)))
        number += 1
        stamp = f"{datetime.now()} {number}" if zone is None else str(datetime.now(zone).replace(tzinfo=None))
        if "file" in told:
            file = Path(told["file"])
            file.write_text(json.dumps({**json.loads(file.read_text()), "last_heartbeat": datetime.now().isoformat()}))
        else:
            with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(path, timeout=0.2) as database:
                database.execute(BEAT, (stamp, agent_id))
    if told.get("stop") in ("inside", "commit"):
        database = sqlite3.connect(path, isolation_level=None)
        if told["stop"] == "commit":
            database.execute("PRAGMA cache_size = 1")  # pages: SQLite writes what it has no room for
            database.execute("BEGIN EXCLUSIVE")
            database.execute("CREATE TABLE half (text)")
            database.executemany("INSERT INTO half VALUES (?)", [("x" * 4000,)] * 50)
        else:
            database.execute("BEGIN IMMEDIATE")
        database.execute(BEAT, (f"never {os.getpid()}", agent_id))
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1_000_000)


if __name__ == "__main__":
    main()
