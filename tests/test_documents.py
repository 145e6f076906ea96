"""The documents are held to the code: examples run, figures are the defaults, tables are generated."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests import config_file
from tests.documents import BLOCKS, DOC, DOCUMENTS, README, ROOT, block
from tests.manual import client, daemon, prose_of
from tests.manual_text import VERBS
from tests.world import BIN, World, make_world, wait_for
from watchdog.cli import verbs
from watchdog.config import settings as config
from watchdog.config.paths import places_for
from watchdog.config.schema import Config
from watchdog.control.server import ROUTES
from watchdog.core.agent import TOLD_OF
from watchdog.core.kill import Polite, Step
from watchdog.core.sd_notify import words_of
from watchdog.host import instance_lock
from watchdog.telemetry.catalogue import CATALOGUE, ERROR, WARNING
from watchdog.telemetry.metrics import FIGURES, PREFIX, Metrics, NoCounts

PACKAGE = ROOT / "watchdog"
NAME = re.compile(r"[a-z]+(\.[a-z_]+)+")
# Section of the README -> lines that it may have, its heading and the empty line after it included; all of them: 220.
BUDGETS = {
    "agent-watchdogd": 25,
    "Quick start": 25,
    "Wire up your agent": 45,
    "How it decides": 25,
    "Cleanup and restore": 15,
    "The eight daily verbs": 20,
    "The five keys that matter": 12,
    "Install, upgrade, uninstall": 20,
    "Operating it": 15,
    "The six limits that matter": 12,
    "Developing, licence": 6,
}
LANGUAGES = (
    "",
    "toml",
    "sh",
    "python",
    "javascript",
)  # commands, of which verbs and flags are looked at; the rest is run
RUN = (README, DOC / "examples.md", DOC / "clients.md")


@pytest.fixture
def world(nursery: None) -> Iterator[World]:
    """A world whose daemon is not started yet."""
    yield from make_world()


def examples(path: Path) -> list[tuple[str, str]]:
    """(language, text) of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)


def section(title: str, path: Path = README) -> str:
    return path.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_readme_keeps_to_its_size() -> None:
    """Exactly these sections, each within its lines: whoever adds something takes something out, or to a document."""
    sizes: dict[str, int] = {}
    title = ""
    for line in README.read_text().splitlines():
        if found := re.match(r"##? (.+)", line):
            title = found[1]
        sizes[title] = sizes.get(title, 0) + 1
    assert list(sizes) == list(BUDGETS)
    assert {title: size for title, size in sizes.items() if size > BUDGETS[title]} == {}
    assert sum(BUDGETS.values()) == 220


def test_each_example_is_of_a_language_that_is_tried() -> None:
    """A block in another one would be shown and never run."""
    for path in DOCUMENTS:
        languages = {language for language, _ in examples(path)}
        assert languages <= set(LANGUAGES if path in RUN else ("", "toml")), path.name
        assert path.read_text().count("\n```") % 2 == 0, path.name


@pytest.mark.parametrize(
    ("language", "program", "file", "agent"),
    [
        ("python", [sys.executable, "-I"], "example.py", "from-python"),
        ("javascript", ["node"], "example.mjs", "from-node"),
        ("sh", ["sh", "-e"], "example.sh", "from-sh"),
    ],
)
def test_an_example_does_what_it_says(world: World, language: str, program: list[str], file: str, agent: str) -> None:
    """As it stands in the document it registers an agent, beats, ends it, and learns of its death."""
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not installed")
    (code,) = [text for kind, text in examples(DOC / "examples.md") if kind == language and agent in text]
    (world.dir / file).write_text(code)
    world.start()

    done = subprocess.run(
        [*program, file], cwd=world.dir, env=world.environ, capture_output=True, text=True, timeout=30, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended on TERM" in done.stdout, done.stdout
    story = world.json("why", agent)
    assert story["agent"]["status"] == "killed"
    assert (story["agent"]["beats"], story["agent"]["note"]) == (1, "page 1 of 9")
    assert [e["who"] for e in story["events"] if e["event"] == "kill.requested"] == [
        f"uid {story['agent']['owner_uid']}"
    ]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20, "an example of about 15 lines"


def test_what_a_shell_needs_for_the_examples_is_found(world: World) -> None:
    """The line in front of them prints the socket of the daemon that answers."""
    world.start()
    (line,) = [text for kind, text in examples(DOC / "examples.md") if kind == "sh" and "from-sh" not in text]

    done = subprocess.run(
        ["sh", "-ec", f'{line}\necho "$AGENT_WATCHDOG_SOCKET"'],
        env=world.environ,
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert done.stdout.strip() == str(world.environ["AGENT_WATCHDOG_SOCKET"])


def test_the_quick_start_does_what_it_says(world: World) -> None:
    """As a newcomer would paste it, a line at a time, in a clone."""
    (world.dir / ".venv").mkdir()
    (world.dir / ".venv/bin").symlink_to(BIN)
    world.start()
    (code,) = [text for _, text in examples(README) if "run --name alpha --stall-after" in text and "export" in text]
    export, run, *rest = code.splitlines()
    assert [line.split()[1] for line in rest] == ["list", "why", "kill"]

    def typed(line: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", f"{export}\n{line}"],
            cwd=world.dir,
            env=world.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, line
        return done.stdout

    typed(run.removesuffix("&") + ">/dev/null &")
    wait_for(lambda: world.agents().get("alpha", {}).get("note") == "page 1 of 9", "its beat")
    listed, why, killed = map(typed, rest)
    assert "alpha" in listed and "page 1 of 9" in why
    assert "ended on TERM" in killed
    assert world.json("why", "alpha")["agent"]["status"] == "killed"


def test_a_shell_registers_itself_and_beats_as_the_readme_says(world: World) -> None:
    """By the client, then over HTTP: what the README shows for agents that somebody starts by hand."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    code = "".join(text for kind, text in examples(README) if kind == "sh")
    assert "register --name nightly" in code and "curl" in code
    world.start()

    done = subprocess.run(
        ["sh", "-ec", code], cwd=world.dir, env=world.environ, capture_output=True, text=True, timeout=30, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    agent = world.json("why", "nightly")["agent"]
    assert (agent["beats"], agent["note"]) == (2, "step 2")


def test_commands_in_documents_are_taken() -> None:
    """Each verb and flag that a document tells somebody to type is one of the client's or the daemon's."""
    whole, found = client()
    known = {verb.name: {flag for option in verb.options for flag in option.flags} for verb in found}
    known["agent-watchdogd"] = {flag for option in daemon().options for flag in option.flags}
    everywhere = {flag for option in whole.options for flag in option.flags} | {"--socket"}
    seen = set()
    for path in DOCUMENTS:
        inline = re.findall(r"`((?:agent-watchdogd?) [^`]+)`", path.read_text())
        for line in [*(line for _, text in examples(path) for line in text.splitlines()), *inline]:
            for command in re.findall(r"\bagent-watchdogd? [^;|&'\"()#`]*", line.split(" -- ")[0]):
                name, *words = command.split()
                words = words[2:] if words[:1] == ["--socket"] else words
                verb = name if name.endswith("d") else (words[:1] or [""])[0]
                if not re.fullmatch(r"[a-z][a-z-]*", verb):
                    continue  # a placeholder (VERB), or a sentence
                if verb not in known:
                    assert "$" not in line and "reload" not in verb, f"{path.name}: {command}"
                assert verb in known, f"{path.name}: {command}"
                flags = {word.split("=")[0] for word in words if word.startswith("--") and len(word) > 2}
                assert flags <= known[verb] | everywhere, f"{path.name}: {command}"
                seen.add(verb)
    assert len(seen) >= 12


def test_the_timeline_has_the_figures_of_the_defaults() -> None:
    """Late at `after_seconds`, confirmed by the next look, TERM for the rest at half of the grace, KILL at its end."""
    settings = config.load(None, environ={"HOME": "/nowhere"})
    policy = settings.policy_of("", "any", ())
    after, interval, grace = (d / timedelta(seconds=1) for d in (policy.after, settings.interval, policy.grace))
    assert policy.polite is Polite.MAIN_FIRST
    confirmed = after + (policy.confirm_sweeps - 1) * interval

    text = " ".join(section("How it decides").split("```")[-1].split())
    page = (ROOT / "config/man/agent-watchdog.7").read_text()
    timeline = page.split(".SH TIMELINE OF A SILENT AGENT")[1].split(".SH")[0].replace("\\", "")
    moments = re.findall(r"^\.TP\n\.B (.+)\n(.+)$", timeline, re.MULTILINE)
    seconds = [float(moment.removesuffix(" s")) for moment, _ in moments if moment != "then"]

    assert seconds == [0, after, confirmed, confirmed, confirmed, confirmed + grace / 2, confirmed + grace]
    in_readme = [float(number) for number in re.findall(r"(?<!\w)(1\d\d) s", text)]
    assert in_readme == [after, confirmed, confirmed + grace / 2, confirmed + grace]
    assert f"a second look ({0.9 * interval:g} s later or more)" in text
    assert (
        f"at least {0.9 * interval:g} s later ({after + 0.9 * interval:g} to {after + 1.9 * interval:g} s)" in timeline
    )
    assert f"within {policy.verify.total_seconds():g} s of KILL" in timeline
    hold = settings.hold
    assert (hold.mass_stall_count, hold.mass_stall_fraction) == (3, 0.5)
    assert "(3 agents and half of all)" in text and "(3 agents and half of all)" in page
    events = [found[1] for _, words in moments if (found := re.match(r"([a-z]+\.[a-z_]+):", words))]
    assert all(event in CATALOGUE for event in events) and len(events) == 9, events
    shown = re.findall(r"^  \d\d:\d\d:\d\d  ([a-z]+\.[a-z_]+)\b", section("How it decides"), re.MULTILINE)
    assert set(shown) <= set(CATALOGUE) and len(shown) == 5


@pytest.mark.parametrize("name", BLOCKS)
def test_what_is_generated_is_as_it_is_made(name: str) -> None:
    """Events, versions, routes, what can be made again: `make events` writes them; nobody edits them by hand."""
    assert block(name) == BLOCKS[name][2](), "make events"


def test_the_configuration_file_is_as_it_is_made() -> None:
    """From the schema, where each key has its default and its reason."""
    assert config_file.FILE.read_text() == config_file.text(), "make events"


def test_every_route_has_its_meaning() -> None:
    """It is a cell of a table."""
    for route in ROUTES:
        where = f"{route.method} {route.path} in ROUTES, watchdog/control/server.py"
        assert route.does and "|" not in route.does, f"{where}: `does` is what the document says of it"
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


class OneHold(NoCounts):
    """Of which there is one."""

    def hold_counts(self) -> dict[str, int]:
        return {"operator": 1}


def test_every_figure_is_in_the_table() -> None:
    """What /metrics gives is in FIGURES with its labels, which is in the table of events.md, and nothing else is."""
    there = {}
    metrics = Metrics()
    metrics.count(OneHold())
    for metric in metrics.registry.collect():
        total = "_total" if metric.type == "counter" else ""
        labels = {label for sample in metric.samples for label in sample.labels} - {"le"}
        there[metric.name.removeprefix(PREFIX) + total] = labels
    unused = {"kills_total", "cleanup_failures_total", "denied_total"}  # no sample before the first one

    assert set(there) == set(FIGURES)
    assert {n: labels for n, labels in there.items() if n not in unused} == {
        n: set(figure.labels) for n, figure in FIGURES.items() if n not in unused
    }


def test_who_is_paged_finds_what_to_do() -> None:
    """Every error says it; what is only information asks for nothing."""
    for event, entry in CATALOGUE.items():
        assert entry.act or entry.level < ERROR, event
        assert not entry.act or entry.level >= WARNING, event
        assert "|" not in entry.act + entry.text


def test_what_is_to_be_done_is_said_in_words_and_by_commands_that_there_are() -> None:
    """O35: "old: nobody is watched" said of a figure that it was old."""
    acts = [entry.act for entry in CATALOGUE.values()] + [figure.act for figure in FIGURES.values()]
    (offered,) = [a.choices for a in verbs.build()._actions if a.dest == "verb"]
    assert offered is not None
    for act in acts:
        assert not re.match(r"(old|new|0|false|true)\b:", act), act
        for verb in re.findall(r"`agent-watchdog ([a-z-]+)", act):
            assert verb in offered, act
    stands_still = FIGURES["last_sweep_timestamp_seconds"].act
    assert stands_still.startswith("No agent is watched: ")


def literals(path: Path) -> Iterator[tuple[str, bool]]:
    """Texts of a module that look like an event's name, and whether each is an argument of something that tells one."""
    tree = ast.parse(path.read_text())
    told = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in {"event", "tell", "_once", "info", "warning"}:
                told |= {id(part) for argument in node.args[:3] for part in ast.walk(argument)}
            told |= {id(keyword.value) for keyword in node.keywords if keyword.arg == "event"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
            yield node.value, id(node) in told


def test_each_event_of_the_catalogue_is_emitted_and_no_other() -> None:
    """A listed name that nothing says misleads who greps for it; an unlisted one surprises him."""
    seen, told = set(), set()
    for path in PACKAGE.rglob("*.py"):
        text = {"log.message"} if path == PACKAGE / "logs.py" else set()
        found = set(literals(path)) if path != PACKAGE / "logs.py" else {(name, True) for name in text}
        seen |= {name for name, _ in found}
        told |= {name for name, is_told in found if is_told}

    assert set(CATALOGUE) - seen == set(), "listed, but nothing emits it"
    assert told - set(CATALOGUE) == set(), "emitted, but not listed"


def test_every_verb_has_a_line() -> None:
    """What `agent-watchdog --help` offers is in the manual with its prose; the README has eight of them."""
    (offered,) = [a.choices for a in verbs.build()._actions if a.dest == "verb"]
    assert offered is not None
    assert set(VERBS) <= set(offered), "VERBS in tests/manual_text.py has verbs that are gone"
    for verb in client()[1]:
        assert prose_of(verb), f"watchdog/cli: {verb.name} says nothing of itself; see `add_verb`"
    daily = re.findall(r"^\| `([a-z-]+)[ `]", section("The eight daily verbs"), re.MULTILINE)
    assert len(daily) == 8 and set(daily) <= set(offered)
    rest_ = section("The eight daily verbs").rpartition("The other verbs")[2]
    assert set(re.findall(r"`([a-z]+)`", rest_)) <= set(offered) - set(daily)


def test_the_five_keys_are_keys_with_their_defaults() -> None:
    """Each is in the shipped file, with the value that the README gives."""
    shipped = (ROOT / "config/agent-watchdog.toml").read_text()
    rows = re.findall(
        r"^- `(?:(\w+)\.(\w+)|\[+(\w+)\]+)`(?: \((.+?)\))?:", section("The five keys that matter"), re.MULTILINE
    )
    assert len(rows) == 5
    for table_, key, whole, value in rows:
        if whole:
            assert re.search(rf"^#?\[+{whole}\]+$", shipped, re.MULTILINE), whole
        else:
            part = shipped.split(f"\n[{table_}]\n")[1].split("\n[")[0]
            assert f"\n#{key} = {value.strip('`')}\n" in part, key


def test_the_manual_shows_each_default_as_the_file_has_it() -> None:
    """troff's `.B` takes quotes for its own: a string then stands there without them, and is no TOML."""
    page = (ROOT / "config/man/agent-watchdog.toml.5").read_text()

    assert '\\fBroots = ["/tmp", "/var/tmp"]\\fR' in page
    assert not re.search(r'^\.[BIR]+ .*"', page, re.MULTILINE)


def files_of(path: Path) -> list[str]:
    return [text for language, text in examples(path) if language == "toml"]


def test_the_examples_of_configuration_are_taken(tmp_path: Path) -> None:
    """Each block of TOML is a file that the daemon would start with."""
    blocks = [text for path in DOCUMENTS for text in files_of(path)]
    for number, block_ in enumerate(blocks):
        path = tmp_path / f"{number}.toml"
        path.write_text(block_)
        config.load(str(path))
    assert len(blocks) >= 5


@pytest.mark.parametrize("path", [README, DOC / "agents.md", DOC / "examples.md"], ids=lambda path: path.name)
def test_the_policy_lets_the_silence_of_sessions_be_acted_on(tmp_path: Path, path: Path) -> None:
    """An agent that only a hook or a list told of is reported alone, until this entry is in the file."""
    (policy,) = [text for text in files_of(path) if "[[policy]]" in text]
    (tmp_path / "file.toml").write_text(policy)
    settings, without = config.load(str(tmp_path / "file.toml")), config.load(None, environ={"HOME": "/nowhere"})
    for source in TOLD_OF:
        assert without.policy_of("claude", "any", (), source).ladder == (Step.WARN,)
        assert Step.KILL in settings.policy_of("claude", "any", (), source).ladder


def test_every_key_of_a_datagram_is_one_that_is_understood() -> None:
    """Each key in the table makes a beat of a message that holds nothing else."""
    rows = [
        line.split("|")[1]
        for line in section("Environment and heartbeats", DOC / "agents.md").splitlines()
        if line.startswith("| `")
    ]
    keys = [key for row in rows for key in re.findall(r"`([A-Z_]+=1?)`", row)]
    for key in keys:
        field, _, value = key.partition("=")
        alone = {field: value or {"X_AGENT_STATE": "idle"}.get(field, "5")}
        assert words_of(alone, from_main=True) is not None, key
    assert len(keys) >= 9


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link is a file of the repository, and what follows its `#` is a heading there."""
    for target, _, heading in re.findall(r"\]\(([^)#:]*)(#([^)]*))?\)", path.read_text()):
        there = path.parent / target if target else path
        assert there.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, heading


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_are_in_plain_english(path: Path) -> None:
    """A process is "it", a person "they"; no clause without a noun before it. Generated blocks apart."""
    text = re.sub(
        r"^```.*?^```|^<!-- (\w+): generated.*?^<!-- end of \1", "", path.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    assert re.findall(r"\b(?:whom|anew|nobody|everybody|somebody|anybody|himself|he|him|his)\b", text) == []


def test_files_that_the_design_names_are_there() -> None:
    """Paths below watchdog/; a module that moves takes its name along."""
    text = (ROOT / "watchdog/DESIGN.md").read_text()
    named = re.findall(r"`([\w/]+\.py|[a-z_]+/(?:[a-z_]+/)*)`", text)
    there = [name for name in named if not re.search(r"/[A-Z]+\.py", name)]  # a recipe's new file
    assert [name for name in there if not (PACKAGE / name).exists() and not (ROOT / name).exists()] == []
    assert len(there) > 40


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_document_names_are_there(path: Path) -> None:
    """By their whole path, or in the design below watchdog/."""
    named = re.findall(r"`((?:tests|watchdog|config|systemd)/[\w/.-]+)`", path.read_text())
    assert [name for name in named if not (ROOT / name).exists() and not (path.parent / name).exists()] == []


def test_every_package_has_its_decisions() -> None:
    """One section each, in the design."""
    decisions = section("Decisions, by package", ROOT / "watchdog/DESIGN.md")
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {
        "client",
        "config",
    }  # nothing was in doubt
    assert set(re.findall(r"^### (\w+)$", decisions, re.MULTILINE)) == packages


def test_the_lines_of_make_run_and_of_the_start_go_together() -> None:
    """O18: who has pasted the daemon's invitation, once or again, can go on with the README: no name is taken."""
    invitation = instance_lock.console_hint(config.settings_of(Config(), None, places_for(0, {})))
    started = re.findall(r"--name (\w+)", section("Quick start"))
    assert " run -- sleep 600 &\n" in invitation
    assert "--name" not in invitation
    assert started
    assert len(set(started)) == len(started)
