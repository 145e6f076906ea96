"""An agent with many manners, named by words:  agent.py WORD...

beat=SECONDS[/TIMES]   beats each SECONDS (TIMES times, else for ever)     state=S   sends that state once
lease=SECONDS          takes a lease and is silent                         spin      uses a whole core, silent
progress=N             beats carry progress N                              exit=N    ends with that status
for=SECONDS            what came before lasts so long, then the rest       deaf      ignores TERM, INT and HUP
by=sdnotify            beats by PyPI's sdnotify, connected once           sleep     does nothing for ever
by=systemd-notify      beats by that program, --no-block                  by=beat   beats by `agent-watchdog beat`
busy=SHARE             uses that share of a core for ever, silent         witness   writes each signal that it gets
nest=NAME              runs agent NAME, which beats, and waits for it     grandchild  starts a deaf one, setsid
"""

import os
import signal
import socket
import subprocess
import sys
import time

WITNESSED = ("HUP", "INT", "QUIT", "TERM", "CONT", "USR1", "USR2", "ALRM", "TSTP", "PIPE")


class Speaker:
    """A client that connects once, as PyPI's sdnotify does."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if os.environ.get("NOTIFY_SOCKET"):
            self.socket.connect(os.environ["NOTIFY_SOCKET"])

    def say(self, *words: str) -> None:
        try:
            self.socket.sendall("\n".join(words).encode())
        except OSError as error:
            print(f"beat refused: {error}", flush=True)


class Library(Speaker):
    """PyPI's sdnotify itself."""

    def __init__(self) -> None:
        import sdnotify

        self.notifier = sdnotify.SystemdNotifier()

    def say(self, *words: str) -> None:
        self.notifier.notify("\n".join(words))


class Program(Speaker):
    """A short-lived program for each beat."""

    def __init__(self, *command: str) -> None:
        self.command = command

    def say(self, *words: str) -> None:
        # Its status is not looked at: a shell script's agent goes on too when nobody listens.
        subprocess.run([*self.command, *words] if self.command[0] == "systemd-notify" else self.command, check=False)


def speaker_named(name: str) -> Speaker:
    if name == "sdnotify":
        return Library()
    return Program("systemd-notify", "--no-block") if name == "systemd-notify" else Program("agent-watchdog", "beat")


def witness() -> None:
    """Write each signal into the world's directory: who was never to be signalled can prove it."""
    path = os.path.join(os.environ["WORLD"], "signals")

    def saw(number: int, _frame: object) -> None:
        with open(path, "a") as file:
            file.write(f"{os.getpid()} {signal.Signals(number).name}\n")

    for name in WITNESSED:
        signal.signal(getattr(signal, f"SIG{name}"), saw)


def busy(share: float) -> None:
    while True:
        end = time.thread_time() + share * 0.2
        began = time.monotonic()
        while time.thread_time() < end:
            pass
        time.sleep(max(0.0, 0.2 - (time.monotonic() - began)))


def main() -> None:
    named = [word.partition("=")[2] for word in sys.argv[1:] if word.startswith("by=")]
    speaker = speaker_named(named[0]) if named else Speaker()
    every: float | None = None
    progress: str | None = None
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
        elif key == "busy":
            beat(speaker, None)
            busy(float(value))
        elif key == "witness":
            witness()
        elif key == "nest":
            beat(speaker, None)
            me = [sys.executable, __file__, "witness", "beat=0.5"]
            subprocess.run(["agent-watchdog", "run", "--name", value, "--", *me], check=True)
        elif key == "grandchild":
            deaf = "trap '' TERM INT HUP; exec sleep 1000"
            subprocess.Popen(["/bin/sh", "-c", deaf], start_new_session=True)
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
