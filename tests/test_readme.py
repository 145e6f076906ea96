"""The README is held to the code: its examples run, its figures are the defaults, its event table the catalogue."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.readme import README, VERSIONS_BEGIN, VERSIONS_END, block, table, versions
from tests.world import World, make_world
from watchdog.cli import verbs
from watchdog.config import settings as config
from watchdog.config.paths import places_for
from watchdog.config.schema import Config
from watchdog.core.kill import Polite
from watchdog.core.sd_notify import words_of
from watchdog.host import instance_lock
from watchdog.owner.sources import SOURCES
from watchdog.telemetry.catalogue import CATALOGUE, ERROR, WARNING
from watchdog.telemetry.metrics import FIGURES, PREFIX, Metrics

TEXT = README.read_text()
PACKAGE = README.parent / "watchdog"
NAME = re.compile(r"[a-z]+(\.[a-z_]+)+")


@pytest.fixture
def world() -> Iterator[World]:
    """A world whose daemon is not started yet."""
    yield from make_world()


def example(language: str) -> str:
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return str(code)


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("language", "program", "file", "agent"),
    [
        ("python", [sys.executable, "-I"], "example.py", "from-python"),
        ("javascript", ["node"], "example.mjs", "from-node"),
        ("sh", ["sh", "-e"], "example.sh", "from-sh"),
    ],
)
def test_an_example_does_what_it_says(world: World, language: str, program: list[str], file: str, agent: str) -> None:
    """As it stands in the README it registers an agent, beats, ends it, and learns of its death."""
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not installed")
    code = example(language)
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


def test_the_timeline_has_the_figures_of_the_defaults() -> None:
    """Late at `after_seconds`, confirmed by the next look, TERM for the rest at half of the grace, KILL at its end."""
    settings = config.load(None, environ={"HOME": "/nowhere"})
    policy = settings.policy_of("", "any", ())
    after, interval, grace = (d / timedelta(seconds=1) for d in (policy.after, settings.interval, policy.grace))
    assert policy.polite is Polite.MAIN_FIRST
    confirmed = after + (policy.confirm_sweeps - 1) * interval

    timeline = section("A silent agent, second by second")
    rows = [line.split("|")[1:4] for line in timeline.splitlines() if line.startswith("| ")][2:]
    seconds = [float(row[0]) for row in rows if row[0].strip()[0].isdigit()]

    assert seconds == [0, after, confirmed, confirmed, confirmed, confirmed + grace / 2, confirmed + grace]
    assert (
        f"at least {0.9 * interval:g} s later ({after + 0.9 * interval:g} to {after + 1.9 * interval:g} s)" in timeline
    )
    assert f"within {policy.verify.total_seconds():g} s of KILL" in timeline
    hold = settings.hold
    assert (hold.mass_stall_count, hold.mass_stall_fraction) == (3, 0.5)
    assert "(3 agents and half of all)" in " ".join(timeline.split())
    events = [row[2].strip(" `") for row in rows]
    assert all(event in CATALOGUE for event in events if event), events


def test_the_table_of_events_is_the_catalogue() -> None:
    """`make events` writes it; nobody edits it by hand."""
    assert block(TEXT) == table()
    assert block(TEXT, VERSIONS_BEGIN, VERSIONS_END) == versions()


def test_every_figure_is_in_the_table() -> None:
    """What /metrics gives is in FIGURES with its labels, which is in the README's table, and nothing else is."""
    there = {}
    for metric in Metrics(dict, lambda: {"operator": 1}).registry.collect():
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
    """What `agent-watchdog --help` offers is in the table of verbs, and nothing else is."""
    (offered,) = [a.choices for a in verbs.build()._actions if a.dest == "verb"]
    assert offered is not None
    listed = set(
        re.findall(
            r"`([a-z-]+)[ `]",
            " ".join(line.split("|")[1] for line in section("Verbs").splitlines() if line.startswith("| `")),
        )
    )

    assert listed == set(offered)


def test_the_manual_shows_each_default_as_the_file_has_it() -> None:
    """troff's `.B` takes quotes for its own: a string then stands there without them, and is no TOML."""
    page = (README.parent / "config/man/agent-watchdog.toml.5").read_text()

    assert '\\fBroots = ["/tmp", "/var/tmp"]\\fR' in page
    assert not re.search(r'^\.[BIR]+ .*"', page, re.MULTILINE)


def test_the_examples_of_configuration_are_taken(tmp_path: Path) -> None:
    """Each block of TOML is a file that the daemon would start with."""
    blocks = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    for number, block_ in enumerate(blocks):
        path = tmp_path / f"{number}.toml"
        path.write_text(block_)
        config.load(str(path))
    assert len(blocks) >= 2


def test_every_kind_of_source_has_a_line() -> None:
    """What `kind` of a [[source]] may be is in the table of registries, and nothing else is."""
    listed = re.findall(
        r"^\| `(\w+)` \|", TEXT.split("### Other programs' registries")[1].split("###")[0], re.MULTILINE
    )

    assert sorted(listed) == sorted(SOURCES)


def test_every_key_of_a_datagram_is_one_that_is_understood() -> None:
    """Each key in the table makes a beat of a message that holds nothing else."""
    rows = [line.split("|")[1] for line in section("How agents speak").splitlines() if line.startswith("| `")]
    keys = [key for row in rows for key in re.findall(r"`([A-Z_]+=1?)`", row)]
    for key in keys:
        field, _, value = key.partition("=")
        alone = {field: value or {"X_AGENT_STATE": "idle"}.get(field, "5")}
        assert words_of(alone, from_main=True) is not None, key
    assert len(keys) >= 9


def test_links_lead_somewhere() -> None:
    """Every relative link is a file of the repository."""
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (README.parent / target).exists(), target


def test_the_lines_of_make_run_and_of_the_start_go_together() -> None:
    """O18: who has pasted the daemon's invitation, once or again, can go on with the README: no name is taken."""
    invitation = instance_lock.console_hint(config.settings_of(Config(), None, places_for(0, {})))
    started = re.findall(r"--name (\w+)", section("Start"))
    assert " run -- sleep 600 &\n" in invitation
    assert "--name" not in invitation
    assert started
    assert len(set(started)) == len(started)
