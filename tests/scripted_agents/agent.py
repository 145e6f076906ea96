"""An agent with many manners, named by words:  agent.py WORD...

beat=SECONDS[/TIMES]   beats each SECONDS (TIMES times, else for ever)     state=S   sends that state once
lease=SECONDS          takes a lease and is silent                         spin      uses a whole core, silent
progress=N             beats carry progress N                              exit=N    ends with that status
for=SECONDS            what came before lasts so long, then the rest       deaf      ignores TERM, INT and HUP
by=sdnotify            beats by PyPI's sdnotify, connected once           sleep     does nothing for ever
by=anew                beats by a socket for each word, which it closes
by=systemd-notify      beats by that program, --no-block                  by=beat   beats by `agent-watchdog beat`
children=SECONDS/PAUSE uses a core by children that live so long, one after the other, silent
busy=SHARE             uses that share of a core for ever, silent         witness   writes each signal that it gets
nest=NAME              runs agent NAME, which beats, and waits for it     grandchild  starts a deaf one, setsid
read                   beats once, and at each line that it reads; the line "bye" ends it
append=SECONDS[/TIMES]@FILE  adds a line to that file each SECONDS, as a transcript grows
print=SECONDS[/TIMES]  says another line to its terminal each SECONDS       draw      turns a spinner and counts there
prompt                 asks for a permission on its terminal, beats meanwhile, and goes on when it is answered
loop=SECONDS           asks by HTTP before each tool call of that length, writes it down, and ends when told to stop

In place of TIMES in `beat`, of SECONDS in `for` and `loop`: the name of a file in the world, until which it goes on.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
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


class Anew(Speaker):
    """A socket for each word, closed after it."""

    def __init__(self) -> None:
        pass

    def say(self, *words: str) -> None:
        with contextlib.suppress(OSError):  # nothing listens on it now: the next word finds who does
            speaker = Speaker()
            speaker.say(*words)
            speaker.socket.close()


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
        # Its status is not looked at: a shell script's agent goes on too when nothing listens on it.
        subprocess.run([*self.command, *words] if self.command[0] == "systemd-notify" else self.command, check=False)


def speaker_named(name: str) -> Speaker:
    if name == "sdnotify":
        return Library()
    if name == "anew":
        return Anew()
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


def children(value: str) -> None:
    """As a test runner, or a shell's loop, does: no look finds the same one twice."""
    seconds, pause = (float(number) for number in value.split("/"))
    code = f"import time\nwhile time.process_time() < {seconds}: pass"
    while True:
        subprocess.run([sys.executable, "-IS", "-c", code], check=True)
        time.sleep(pause)


def post_beat(**words: object) -> dict[str, object]:
    """A beat as a vendor's hook sends it; what the daemon answers. Nobody there: nothing to heed."""
    connection = socket.socket(socket.AF_UNIX)
    body = json.dumps(words)
    path = f"/v1/agents/{os.environ['AGENT_WATCHDOG_ID']}/beat"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        connection.connect(os.environ["AGENT_WATCHDOG_SOCKET"])
        connection.sendall((head + body).encode())
        content = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")[2]
        return dict(json.loads(content or b"{}"))
    except OSError:
        return {}
    finally:
        connection.close()


def number_of(value: str) -> float | None:
    """None: it is the name of a file in the world."""
    try:
        return float(value)
    except ValueError:
        return None


def is_there(name: str) -> bool:
    return os.path.exists(os.path.join(os.environ["WORLD"], name))


def call(value: str) -> None:
    """A tool call takes so many seconds, or until that file is there."""
    seconds = number_of(value)
    time.sleep(seconds or 0)
    while seconds is None and not is_there(value):
        time.sleep(0.02)


def loop(length: str) -> None:
    with open(os.path.join(os.environ["WORLD"], "calls"), "a", buffering=1) as calls:
        while True:
            told = post_beat(tool="build", tool_limit_seconds=60).get("stop")
            if told is not None:
                calls.write(f"told {json.dumps(told)}\n")
                os._exit(0)
            calls.write("begun\n")
            call(length)
            calls.write("done\n")


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
            every, done = float(seconds), 0
            if count:
                while done < int(count) if count.isdigit() else not (done and is_there(count)):
                    beat(speaker, progress)
                    time.sleep(every)
                    done += 1
                every = None
        elif key == "state":
            speaker.say("WATCHDOG=1", f"X_AGENT_STATE={value}")
        elif key == "lease":
            speaker.say("WATCHDOG=1", f"X_AGENT_SILENT_FOR={value}")
        elif key == "progress":
            progress = value
        elif key == "for":
            last(number_of(value), speaker, every, progress, until=value)
            every = None
        elif key == "spin":
            beat(speaker, None)
            while True:
                pass
        elif key == "children":
            children(value)
        elif key == "busy":
            beat(speaker, None)
            busy(float(value))
        elif key == "read":
            beat(speaker, None)
            for line in sys.stdin:
                if line == "bye\n":
                    os._exit(0)
                beat(speaker, None)
        elif key == "prompt":
            print("Do you want to proceed?\n❯ 1. Yes\n  2. No", flush=True)
            threading.Thread(target=last, args=(None, speaker, 0.3, None), daemon=True).start()
            sys.stdin.readline()
            print("\n" * 50 + "at work", flush=True)
        elif key == "loop":
            loop(value)
        elif key == "witness":
            witness()
        elif key == "nest":
            beat(speaker, None)
            me = [sys.executable, __file__, "witness", "beat=0.5"]
            subprocess.run(["agent-watchdog", "run", "--name", value, "--", *me], check=True)
        elif key == "grandchild":
            deaf = "trap '' TERM INT HUP; exec sleep 1000"
            subprocess.Popen(["/bin/sh", "-c", deaf], start_new_session=True)
        elif key == "say":
            speaker.say(*value.split(","))
        elif key == "touch":
            touch(value)
        elif key == "thread":
            threading.Thread(target=last, args=(None, speaker, float(value), progress), daemon=True).start()
        elif key == "write":
            write(value)
        elif key == "append":
            append(value)
        elif key == "print":
            say_lines(value)
        elif key == "draw":
            draw()
        elif key == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif key == "exec":
            os.execv(sys.executable, [sys.executable, __file__, *sys.argv[sys.argv.index(word) + 1 :]])
        elif key == "drop":
            os.setgid(int(value))
            os.setuid(int(value))
        elif key == "half":
            half([sys.argv[0], *sys.argv[sys.argv.index(word) + 1 :]])
        elif key == "exit":
            os._exit(int(value))
    last(None, speaker, every, progress)


def touch(value: str) -> None:
    """So many times, each so many seconds; the stamps are now, or a second apart from a given one."""
    rhythm, _, stamp = value.partition("@")
    seconds, _, times = rhythm.partition("/")
    with open(os.environ["BEAT_FILE"], "a"):
        pass
    for number in range(int(times)):
        then = float(stamp) + number if stamp else time.time()
        os.utime(os.environ["BEAT_FILE"], (then, then))
        time.sleep(float(seconds))


def write(value: str) -> None:
    """A file is written anew and takes the place of the former one, so often; on a full disk it cannot."""
    rhythm, _, path = value.partition("@")
    seconds, _, times = rhythm.partition("/")
    for _ in range(int(times or 1_000_000)):
        try:
            with open(f"{path}.new", "w") as file:
                file.write("x" * 5000)
            os.replace(f"{path}.new", path)
        except OSError as error:
            print(error, flush=True)
        time.sleep(float(seconds))


def append(value: str) -> None:
    """So many lines, each after so many seconds."""
    rhythm, _, path = value.partition("@")
    seconds, _, times = rhythm.partition("/")
    for number in range(int(times or 1_000_000)):
        time.sleep(float(seconds))
        with open(path, "a") as file:
            file.write(f"line {number}\n")


def say_lines(value: str) -> None:
    """So many lines to the terminal, each after so many seconds: words that were not there before."""
    seconds, _, times = value.partition("/")
    for number in range(int(times or 1_000_000)):
        time.sleep(float(seconds))
        word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        print(f"reads {word}", flush=True)


def draw() -> None:
    """As a vendor's program does while it waits: a glyph that turns, a clock, a count, and two words in turn."""
    began = time.monotonic()
    for number in range(1_000_000):
        glyph, word = "⠋⠙⠹⠸|/-\\"[number % 8], ("Thinking", "Pondering")[number % 10 // 5]
        print(f"\r{glyph} {word}… ({time.monotonic() - began:.0f}s · {number}k tokens)", end="", flush=True)
        time.sleep(0.1)


def half(words: list[str]) -> None:
    """The leader is a zombie, and the process lives (pthread_exit(3))."""
    import ctypes

    def rest() -> None:
        with open("/proc/self/stat") as stat:
            while stat.seek(0) or stat.read().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.01)
        sys.argv[:] = words
        main()

    threading.Thread(target=rest).start()
    ctypes.CDLL(None).pthread_exit(None)


def beat(speaker: Speaker, progress: str | None) -> None:
    speaker.say("WATCHDOG=1", *([f"X_AGENT_PROGRESS={progress}"] if progress else []))


def last(seconds: float | None, speaker: Speaker, every: float | None, progress: str | None, until: str = "") -> None:
    """For so long, or until that file is there, or for ever."""
    end = None if seconds is None else time.monotonic() + seconds
    while end is None or time.monotonic() < end:
        if end is None and until and is_there(until):
            return
        if every is None:
            time.sleep((0.05 if until else 1000) if end is None else max(0.0, end - time.monotonic()))
        else:
            beat(speaker, progress)
            time.sleep(every)


main()
