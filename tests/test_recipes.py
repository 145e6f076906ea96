"""The recipes of watchdog/DESIGN.md, followed in a copy of the repository: what they name is all that it takes.

Each example is one new file, or lines for one table. Nothing else is changed; then what is generated is written again,
and the new thing has to be in all of it.
"""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.test_documents import section
from tests.world import wait_for

DESIGN = ROOT / "watchdog/DESIGN.md"
RECIPES = {
    title: text for title, _, text in (part.partition("\n") for part in section("Recipes", DESIGN).split("\n### ")[1:])
}
# What stands in for the console scripts, which would take the installed package.
DAEMON = "from watchdog.service.main import main; raise SystemExit(main())"
CLIENT = "from watchdog.cli.main import main; raise SystemExit(main())"


class Copy:
    """A copy of the package, and of what is generated from it."""

    def __init__(self, top: Path) -> None:
        self.top = top
        ignored = shutil.ignore_patterns("__pycache__")
        for name in ("watchdog", "config", "tests/vendors"):
            shutil.copytree(ROOT / name, top / name, ignore=ignored)
        for path in (ROOT / "tests").glob("*.py"):
            shutil.copy(path, top / "tests")
        self.environ = {**os.environ, "PYTHONPATH": str(top), "HOME": str(top), "XDG_RUNTIME_DIR": str(top)}
        for name in ("AGENT_WATCHDOG_CONFIG", "AGENT_WATCHDOG_SOCKET", "AGENT_WATCHDOG_ID", "XDG_STATE_HOME"):
            self.environ.pop(name, None)

    def follow(self, recipe: str) -> None:
        """Do what its examples say, and no more; then `make events`."""
        for example in re.findall(r"^```\n(.*?)^```$", RECIPES[recipe], re.DOTALL | re.MULTILINE):
            head, _, lines = example.partition("\n")
            if new := re.fullmatch(r"# new: ([\w/]+\.py)", head):
                path = self.top / "watchdog" / new[1]
                assert not path.exists(), head
                path.write_text(lines)
                continue
            where = re.fullmatch(r"# in (.+) of ([\w/]+\.py)", head)
            assert where, f"{head}: neither `# new: FILE` nor `# in TABLE of FILE`"
            path = self.top / "watchdog" / where[2]
            text = path.read_text().splitlines(keepends=True)
            text.insert(end_of(ast.parse("".join(text)), where[1]), lines)
            path.write_text("".join(text))
        for module in ("config_file", "documents", "manual"):
            self.python("-m", f"tests.{module}")

    def python(self, *words: str, status: int = 0) -> str:
        """What a program of the copy prints, stderr too."""
        done = subprocess.run(
            [sys.executable, "-B", *words],
            cwd=self.top,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def check(self, text: str, status: int = 0) -> str:
        """What `agent-watchdogd --check` says of a file."""
        (self.top / "f.toml").write_text(text)
        return self.python("-c", DAEMON, "--check", "--config", "f.toml", status=status)

    def text(self, path: str) -> str:
        """A file of the copy; of a man page without troff's escapes."""
        return (self.top / path).read_text().replace("\\-", "-")


def end_of(tree: ast.Module, name: str) -> int:
    """The line before which another entry of that table goes, another name of that import, or another key."""
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=found)) | ast.Assign(targets=[ast.Name(id=found)]) if found == name:
                return int(node.end_lineno or 0) - 1
            case ast.ImportFrom(module=module) if f"the import of {module}" == name:
                return int(node.end_lineno or 0) - 1
            case ast.ClassDef(name=found) if found == name:
                return max(int(one.end_lineno or 0) for one in node.body if isinstance(one, ast.AnnAssign))
    raise AssertionError(f"there is no {name}")


@pytest.fixture
def copy() -> Iterator[Copy]:
    """A copy in which nothing is followed yet, below a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="aw-recipe-") as top:
        yield Copy(Path(top))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_short_and_names_files(recipe: str) -> None:
    """At most five steps, one after the other. That the files are there is tested with those of the whole document."""
    steps = re.findall(r"^(\d)\. (.+(?:\n   .+)*)", RECIPES[recipe], re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert 3 <= len(steps) <= 5
    assert any("`make events`" in text for _, text in steps), recipe


def test_a_hook_is_one_module_and_one_line(copy: Copy) -> None:
    """It runs where none is listed, `--check` knows it and says what stays without it, documents show it."""
    copy.follow("A built-in hook")

    mine = '[[hook]]\nname = "tree"\nrun = "worktree"\n'
    said = copy.check(mine)
    assert re.search(r"yours replace the \w+ shipped ones", said), said
    assert re.search(r"not among them: .*\bscratch\b.*; so these stay: .*\bscratch files\b", said), said
    assert "scratch" not in copy.check(mine + '[[hook]]\nname = "scratch"\nrun = "scratch"\n')
    assert "'registry_entry' or 'scratch'" in copy.check('[[hook]]\nname = "x"\nrun = "y"\n', status=78)

    assert '#name = "scratch"\n#run = "scratch"\n' in copy.text("config/agent-watchdog.toml")
    assert "Removes the scratch file in its worktree." in copy.text("config/man/agent-watchdog.toml.5")
    assert "| `scratch` | removes the scratch file in its worktree |" in copy.text("config/doc/cleanup.md")

    (copy.top / "tree").mkdir()
    (copy.top / "tree/scratch.txt").touch()
    code = (
        "import os\n"
        "from watchdog.core.hooks import CleanupSettings, HookContext\n"
        "from watchdog.core.agent import Status\n"
        "from watchdog.owner.helper import built_in_hook\n"
        "tree = os.path.realpath('tree')\n"
        "told = HookContext('r', 'scratch', 'a' * 32, 'alpha', 0, Status.KILLED, 'x', None, tree, None)\n"
        "print(*(built_in_hook('scratch', told, CleanupSettings()).message for _ in range(2)), sep='; ')\n"
    )
    assert copy.python("-c", code) == "removed scratch.txt; it wrote none\n"


def test_a_source_is_one_module_and_one_line(copy: Copy) -> None:
    """`--check` takes it and says where it is looked for; the owner's helper reads it; documents show it."""
    copy.follow("A source")

    copy.environ["ROSTER"] = str(copy.top / "mine")
    said = copy.check('[[source]]\nkind = "roster"\n')
    assert f"source[0].path: {copy.top}/mine is not there (yet); no agent of roster is known until it is" in said
    assert "did you mean 'roster'?" in copy.check('[[source]]\nkind = "rooster"\n', status=78)

    assert "| `roster` | `~/.roster`: reported, never closed | none |" in copy.text("config/doc/agents.md")
    for path in ("config/agent-watchdog.toml", "config/man/agent-watchdog.toml.5"):
        words = " ".join(copy.text(path).replace("\n# ", " ").split())
        assert 'never killed: "claude" (Claude Code' in words, path
        assert '"roster" (a text file, one agent a line)' in words, path
        assert "$ROSTER, else ~/.roster" in words, path

    (copy.top / "mine").write_text(f"alpha {os.getpid()}\n")
    code = "import json; from watchdog.owner.sources import SOURCES, KINDS, entry_json as one\n"
    code += f"print(json.dumps([one(e) for e in SOURCES['roster'].discover({str(copy.top / 'mine')!r})]))"
    (entry,) = json.loads(copy.python("-c", code))
    assert (entry["name"], entry["pid"], entry["type"]) == ("alpha", os.getpid(), "roster")
    policy = "from watchdog.config.settings import load; print(load().policy_of('', 'x', (), 'roster').ladder)"
    assert "KILL" not in copy.python("-c", policy)


VENDOR = """
from watchdog.core.conversations import kept_in
from watchdog.core.vendor_hooks import words_of_event
from watchdog.core.vendors import runs_as
from watchdog.processes.table import VENDOR_MARKERS
print(words_of_event("pear", {"hook_event_name": "ends"}, {}, main=True)["state"])
print(kept_in("/home/a/pears/11111111-2222-4333-8444-555555555555.json").resume)
print(runs_as("pear", ["node", "/n/@pear/cli/index.js"], "/usr/bin/node"), "PEAR_SESSION" in VENDOR_MARKERS)
"""


def test_a_vendor_is_one_module_and_its_lines(copy: Copy) -> None:
    """Its events are beats, its conversations can be resumed, a policy is shipped; its hooks can be installed."""
    copy.follow("A vendor")

    resume = "pear --again 11111111-2222-4333-8444-555555555555"
    assert copy.python("-c", VENDOR) == f"idle\n{resume}\nscript True\n"
    policy = '#match = { type = "pear" }\n#after_seconds = 900\n#exit_keys = ["/quit", "Enter"]\n'
    assert policy in copy.text("config/agent-watchdog.toml")
    assert "pear" in copy.text("config/man/agent-watchdog.toml.5")
    for shell in ("bash", "zsh", "fish"):
        assert copy.text(f"config/completions/agent-watchdog.{shell}").count("pear") >= 2, shell
    copy.python("-c", CLIENT, "install-hooks", "pear")
    assert "beat --from pear" in (copy.top / ".pear/hooks.json").read_text()


LOOKS = """
import asyncio, os, sys
from datetime import timedelta
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.cli.why import story
from watchdog.control.views.evidence import signals
from watchdog.core.agent import Policy, Registration, Status
from watchdog.owner.helper import last_lines
from watchdog.probes.output_growth import OutputGrowth

class Owners:
    async def call(self, uid, call, args, timeout):
        return {"last_lines": last_lines}[call](**args)

async def main():
    clock, fleet = Clock(), Fleet()
    queries = BackgroundQueries(Owners(), clock)
    growth = OutputGrowth(fleet, queries, clock)
    reg = Registration("a" * 32, "alpha", os.geteuid(), "host", "boot", log="log")
    agent = Agent(reg, Policy(), Status.RUNNING)
    agent.heartbeat.said.promise(True)
    agent.heartbeat.silence.restart(timedelta(minutes=1))
    fleet.add(agent)
    for words in ("one", "two"):
        open("log", "w").write(words + chr(10))
        growth.look()
        while any(queries.waiting((agent.agent_id, kind)) is not None for kind in ("words", "log")):
            await asyncio.sleep(0.01)
    print("\\n".join(story({"agent": {"signals": signals(agent, clock.now().wall)}})))
    await queries.close()

asyncio.run(main())
"""


def test_a_probe_is_one_module_and_one_line(copy: Copy) -> None:
    """It is asked about, what it sees counts as activity, and `why` shows it in its place, with whose word it is."""
    copy.follow("A probe")

    said = copy.python("-c", LOOKS)
    assert re.search(r"words +its log says something else.* \[seen by its owner's helper\]", said), said


def test_a_verb_is_two_modules_and_a_line_for_each(copy: Copy) -> None:
    """The help, the manual, completions and the table of routes have it, and a daemon answers it."""
    copy.follow("A verb with its route")

    assert re.search(r"^    echo +have the daemon say something$", copy.python("-c", CLIENT, "--help"), re.MULTILINE)
    assert "to see that it lives" in copy.python("-c", CLIENT, "echo", "--help")
    page = copy.text("config/man/agent-watchdog.1")
    assert ".SS echo WORD\nhave the daemon say something\n.PP\nHas the daemon say one word" in page
    for shell in ("bash", "zsh", "fish"):
        assert "echo" in copy.text(f"config/completions/agent-watchdog.{shell}"), shell
    assert "| `POST /echo` | repeat what it gets | `words` |" in copy.text("config/doc/agents.md")

    with subprocess.Popen(
        [sys.executable, "-B", "-c", DAEMON],
        cwd=copy.top,
        env={**copy.environ, "AGENT_WATCHDOG_CONFIG": str(config_of(copy))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as daemon:
        try:
            copy.environ["AGENT_WATCHDOG_SOCKET"] = str(copy.top / "run/control.sock")
            wait_for(lambda: (copy.top / "run/control.sock").exists() or daemon.poll() is not None, "its socket")
            assert copy.python("-c", CLIENT, "echo", "hello") == "hello\n"
            assert json.loads(copy.python("-c", CLIENT, "echo", "--json", "hello")) == {"words": "hello"}
            assert "'word'" not in copy.python("-c", CLIENT, "echo", status=64)
        finally:
            daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0, daemon.stderr and daemon.stderr.read()


def config_of(copy: Copy) -> Path:
    """A configuration by which all of a daemon's files lie in the copy."""
    path = copy.top / "own.toml"
    path.write_text(
        f'source = []\n[daemon]\nstate_dir = "{copy.top}/state"\nruntime_dir = "{copy.top}/run"\n'
        f'[log]\nfile = "{copy.top}/daemon.log"\n'
    )
    path.chmod(0o600)
    return path


def test_a_key_is_one_line_with_its_reason(copy: Copy) -> None:
    """The file and the manual have it with its default; `--check` takes it, and says what is wrong with it."""
    copy.follow("A configuration key")

    assert copy.check("[hold]\nleast_agents = 7\n") == f"{copy.top}/f.toml: fine\n"
    said = copy.check("[hold]\nleast_agents = 0\n", status=78)
    assert "hold.least_agents: 0 is wrong; it must be greater than or equal to 1 (default: 5)" in said
    assert "did you mean 'least_agents'?" in copy.check("[hold]\nleast_agent = 7\n", status=78)
    reason = "# From so many agents on at all: a mass stall of two says nothing about the network.\n"
    assert f"{reason}#least_agents = 5\n" in copy.text("config/agent-watchdog.toml")
    assert "\\fBleast_agents = 5\\fR\nFrom so many agents on" in copy.text("config/man/agent-watchdog.toml.5")
    read = "from watchdog.config.settings import load; print(load('f.toml').hold.least_agents)"
    copy.check("[hold]\nleast_agents = 7\n")
    assert copy.python("-c", read) == "7\n"
