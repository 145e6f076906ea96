"""The known agent programs: how to recognise their processes, and how their agents are named.

Each has a module with a `VENDOR`; a new one is imported here and listed in `_ALL`. Imported by `beat --from` at each
event of a vendor hook, so it imports nothing that costs time.
"""

from watchdog.core.names import name_for
from watchdog.core.vendors import agy, claude, codex, gemini, opencode

_ALL = (
    claude.VENDOR,
    codex.VENDOR,
    gemini.VENDOR,
    opencode.VENDOR,
    agy.VENDOR,
)
KNOWN = {vendor.name: vendor for vendor in _ALL}
VENDORS = tuple(name for name, vendor in KNOWN.items() if vendor.events)  # vendors with hooks
EXIT_KEYS = {name: vendor.exit_keys for name, vendor in KNOWN.items()}
# The key that clears the prompt, also a draft of several lines (tried: Claude Code 2.1.332, Codex 0.171.0, Gemini CLI
# 0.61.0, opencode 1.18.33). In an empty prompt it ends opencode; pressed twice it ends the others.
CLEAR_KEYS = dict.fromkeys(VENDORS, "C-c")

# Programs that only start another one and wait: if one is an agent's main process, what it starts beats for the agent.
_SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh", "fish")
_PERSONS = frozenset({*_SHELLS, "csh", "tcsh", "mksh", "nu", "elvish"})  # interactive shells
LAUNCHERS = frozenset(
    {*_SHELLS, "env", "nice", "ionice", "timeout", "stdbuf", "script", "setpriv", "npx", "npm", "bunx"}
)
_INTERPRETERS = frozenset({"node", "nodejs", "bun", "deno"})
_SCRIPTS = (".js", ".mjs", ".cjs", ".ts")


def runs_as(vendor: str, argv: list[str], executable: str) -> str | None:
    """How a process runs that vendor's program: "native", "script" (by an interpreter), or None: not at all.

    `argv`: the start of its command line; `executable`: the target of /proc/PID/exe. `comm` is not used: it may be a
    thread's name, or a version.
    """
    first = argv[0].rpartition("/")[2] if argv else ""
    program = executable.removesuffix(" (deleted)").rpartition("/")[2]
    if program in _INTERPRETERS or first in _INTERPRETERS:
        script = next((word for word in argv[1:] if not word.startswith("-")), "")
        if _named(vendor, script):
            return "script"
        return "native" if first == vendor and program in _INTERPRETERS else None  # it overwrote its argv with its name
    # One binary has several names (`codex-linux-sandbox`): the name in argv decides.
    if first.startswith(f"{vendor}-") and not _is_build(vendor, first):
        return None
    if program.lstrip(".") == vendor or first == vendor or _is_build(vendor, program):
        return "native"
    return "native" if any(part in executable for part in KNOWN[vendor].paths) else None


def is_unprompted(vendor: str, argv: list[str]) -> bool:
    """Whether its command line has no prompt, so that a person types the first one.

    A word after an option counts as its value: in doubt there is no prompt.
    """
    known, words = KNOWN[vendor], argv[1:]
    if argv and argv[0].rpartition("/")[2] in _INTERPRETERS:
        script = next((place for place, word in enumerate(words) if _named(vendor, word)), -1)
        words = words[script + 1 :]
    option = ""
    for place, word in enumerate(words):
        if word.partition("=")[0] in known.prompted:
            return False
        if not word.startswith("-") and not option:
            if word in known.for_persons:
                return True
            if not known.takes_directory or word in known.without or place:
                return False
        option = word if word.startswith("-") and "=" not in word else ""
    return True


def is_called(vendor: str, argv: list[str]) -> bool:
    """Whether a process, or the script that it runs, is called like that vendor: any program may be."""
    script = next((word for word in argv[1:] if not word.startswith("-")), "")
    return bool(argv) and (argv[0].rpartition("/")[2] == vendor or _named(vendor, script))


def is_launcher(argv: list[str]) -> bool:
    """Whether a process only starts another program: a shell, `env`, `npx`."""
    first = argv[0] if argv else ""
    return first.rpartition("/")[2].lstrip("-") in LAUNCHERS or first.startswith(("npm exec", "npm run"))


def is_prompt(argv: list[str]) -> bool:
    """Whether a process is an interactive shell, without a command to run."""
    if not argv or argv[0].rpartition("/")[2].lstrip("-") not in _PERSONS:
        return False
    words = iter(argv[1:])
    for word in words:
        letters = word[1:] if word.startswith(("-", "+")) and word[1:2] != "-" else ""
        if "c" in letters and word[0] == "-":
            return False  # -c, -lc
        if "s" in letters and word[0] == "-":
            return True  # its arguments follow, and it reads from its terminal
        if word in ("--rcfile", "--init-file", "--init-command", "-C") or letters[-1:] in ("o", "O"):  # -C: fish's
            next(words, None)
        elif not word.startswith(("-", "+")):
            return False  # a script
    return True


def agent_name(vendor: str, directory: str, pid: int) -> str:
    """The name of an agent that a vendor hook or registry reported: program, base name of its directory, pid."""
    place = directory.rstrip("/").rpartition("/")[2][:30]
    return name_for(f"{vendor}-{place}" if place else vendor, str(pid))


def session_name(vendor: str, directory: str, session: str) -> str:
    """The name of a session that is an agent without a process of its own; the end of its id makes it unique."""
    place = directory.rstrip("/").rpartition("/")[2][:30]
    return name_for(f"{vendor}-{place}" if place else vendor, "".join(filter(str.isalnum, session))[-8:] or "session")


def _named(vendor: str, script: str) -> bool:
    name = script.rpartition("/")[2]
    for end in _SCRIPTS:
        name = name.removesuffix(end)
    return name == vendor or any(part in script for part in KNOWN[vendor].paths)


def _is_build(vendor: str, name: str) -> bool:
    """Whether the name is that of a downloaded release file: `codex-x86_64-unknown-linux-musl`."""
    return name.startswith((f"{vendor}-x86_64", f"{vendor}-aarch64"))
