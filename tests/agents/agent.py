"""An agent with many manners, named by words:  agent.py WORD...

beat=SECONDS[/TIMES]   beats each SECONDS (TIMES times, else for ever)     state=S   sends that state once
lease=SECONDS          takes a lease and is silent                         spin      uses a whole core, silent
progress=N             beats carry progress N                              exit=N    ends with that status
for=SECONDS            what came before lasts so long, then the rest       deaf      ignores TERM, INT and HUP
by=sdnotify            uses PyPI's sdnotify, connected once                sleep     does nothing for ever
"""

import os
import signal
import socket
import sys
import time


class Speaker:
    """A client that connects once, as PyPI's sdnotify does."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.connect(os.environ["NOTIFY_SOCKET"])

    def say(self, *words: str) -> None:
        try:
            self.socket.sendall("\n".join(words).encode())
        except OSError as error:
            print(f"beat refused: {error}", flush=True)


def main() -> None:
    speaker = Speaker() if "NOTIFY_SOCKET" in os.environ else None
    every, times, progress = None, None, None
    for word in sys.argv[1:]:
        key, _, value = word.partition("=")
        if key == "deaf":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
        elif key == "beat":
            seconds, _, count = value.partition("/")
            every, times = float(seconds), int(count) if count else None
            if times is not None:
                for _ in range(times):
                    beat(speaker, progress)
                    time.sleep(every)
                every = None
        elif key == "state":
            speaker.say("WATCHDOG=1", f"X_AGENT_STATE={value}")
        elif key == "lease":
            speaker.say("WATCHDOG=1", f"X_AGENT_SILENT_FOR={value}")
        elif key == "progress":
            progress = value
        elif key == "for":
            last(float(value), speaker, every, progress)
            every = None
        elif key == "spin":
            beat(speaker, None)
            while True:
                pass
        elif key == "exit":
            os._exit(int(value))
    last(None, speaker, every, progress)


def beat(speaker: Speaker, progress: str | None) -> None:
    speaker.say("WATCHDOG=1", *([f"X_AGENT_PROGRESS={progress}"] if progress else []))


def last(seconds: float | None, speaker: Speaker, every: float | None, progress: str | None) -> None:
    end = None if seconds is None else time.monotonic() + seconds
    while end is None or time.monotonic() < end:
        if every is None:
            time.sleep(1000 if end is None else max(0.0, end - time.monotonic()))
        else:
            beat(speaker, progress)
            time.sleep(every)


main()
