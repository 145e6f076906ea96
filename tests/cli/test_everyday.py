"""What a person types without having read anything: other programs' names for verbs, completion, a slip."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import a_terminal
from tests.world import World, make_world

COMPLETION = Path(__file__).parent.parent.parent / "config/completions/agent-watchdog.bash"


@pytest.fixture
def world(nursery: None) -> Iterator[World]:
    yield from make_world(stall={"after_seconds": 600})


def completed(world: World, *words: str) -> list[str]:
    """What bash offers after these words."""
    script = f"""
. {COMPLETION}
COMP_WORDS=({" ".join(f"'{word}'" for word in words)}) COMP_CWORD={len(words) - 1}
_agent_watchdog
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], env=world.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_other_names_of_verbs_a_slip_and_a_total(world: World) -> None:
    """`ls`, `ps`, `help`, `events -f --since`; the verb that was meant; how many a dry run means."""
    world.start()
    world.registered("alpha", "sleep", "600")
    world.registered("beta", "sleep", "600")

    assert world.cli("ls", "--names").stdout.split() == ["alpha", "beta"]
    assert "alpha" in world.cli("ps").stdout
    assert world.cli("help").stdout == world.cli("--help").stdout
    assert world.cli("help", "kill").stdout == world.cli("kill", "--help").stdout
    slip = world.cli("lits", check=False)
    assert slip.returncode == 64 and "there is no verb 'lits'; did you mean 'list'?" in slip.stderr
    for verb, done in (("kill", "killed"), ("stop", "stopped")):
        total = world.cli(verb, "all", "--dry-run").stdout.splitlines()[-1]
        assert total == f"2 of 2 would be {done}; nothing was done (--dry-run)"
    assert "agent.registered alpha" in world.cli("events", "--since", "1h").stdout

    world.stop()
    world.sql("UPDATE lifecycle_event SET at = datetime(at, '-2 hours') WHERE agent_id IS NOT NULL")
    world.start()
    assert "agent.registered" in world.cli("events").stdout
    assert "agent.registered" not in world.cli("events", "--since", "1h").stdout


def test_completion_offers_agents_and_vendors(world: World) -> None:
    """Where a verb takes them; without a daemon it offers the options alone, and says nothing."""
    world.start()
    world.registered("alpha", "sleep", "600")

    assert completed(world, "agent-watchdog", "kill", "al") == ["alpha"]
    assert completed(world, "agent-watchdog", "why", "").count("alpha") == 1
    assert completed(world, "agent-watchdog", "install-hooks", "cl") == ["claude"]
    assert completed(world, "agent-watchdog", "events", "--agent", "") == ["alpha"]
    assert completed(world, "agent-watchdog", "beat", "--agent", "al") == ["alpha"]
    assert completed(world, "agent-watchdog", "register", "--parent", "al") == ["alpha"]
    assert {"claude", "codex"} <= set(completed(world, "agent-watchdog", "run", "--type", ""))
    assert completed(world, "agent-watchdog", "register", "--type", "op") == ["opencode"]
    assert "alpha" not in completed(world, "agent-watchdog", "status", "")
    world.cli("kill", "alpha")
    assert "alpha" not in completed(world, "agent-watchdog", "kill", "")
    assert "alpha" in completed(world, "agent-watchdog", "purge", "")  # which takes who has ended
    world.stop()
    assert "--force" in completed(world, "agent-watchdog", "kill", "--fo")


@pytest.mark.parametrize("verb", ["kill", "stop"])
def test_a_kill_that_takes_long_says_so_at_a_terminal(world: World, tmp_path: Path, verb: str) -> None:
    """Case O26: while a hook hangs; a script hears nothing of it."""
    gate = tmp_path / "gate"
    tmp_path.chmod(0o755)
    os.mkfifo(gate)
    hook = f"""[[hook]]\nname = "slow"\ncommand = ["/bin/sh", "-c", "cat {gate}"]\n"""
    world.config.write_text(world.config.read_text() + hook)
    world.start()
    world.registered("alpha", "sleep", "600")
    with a_terminal(world.environ, world.dir) as person:
        person.type(f"agent-watchdog {verb} alpha")
        waits_for = "it gives the agents time to exit" if verb == "stop" else "`agent-watchdog why NAME`"
        person.expect(f"agent-watchdog: still working; {waits_for}")
        gate.write_text("")
        person.expect("alpha")
