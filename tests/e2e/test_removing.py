"""`remove --with-messages`: remains of an ended agent in a foreign registry are removed when a person asks."""

import os

import pytest

from tests.owner.sources.relay_home import RelayHome
from tests.world import World, wait_for


@pytest.mark.faults
def test_its_messages_are_removed_with_it_and_no_others(world: World) -> None:
    """At its end its entry was closed, and it stays registered; then its messages go, too. Repeating it is no error."""
    home = RelayHome(world.dir)
    with world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "agent_relay"\npath = "{home.root}"\n')
    process = home.wrapper("mira")
    world.started.append(process)
    home.workers({"name": "mira", "spawnedAt": 1_900_000_000_000, "pid": process.pid})
    home.connected("mira", "nora")
    home.registered("mira", "nora")
    home.session("mira")
    for number, (sender, to) in enumerate((("mira", "me"), ("me", "mira"), ("nora", "me"))):
        words = (f"m{number}", number, sender, to, "message", "hello")
        home.database.execute(
            "INSERT INTO messages (id, ts, sender, recipient, kind, body) VALUES (?,?,?,?,?,?)", words
        )
    world.start()
    wait_for(lambda: "mira" in world.agents(), "it is watched")
    living = world.json("remove", "mira", "--with-messages", check=False)
    assert (living["success"], "is alive" in living["message"]) == (False, True)

    assert world.cli("kill", "mira").returncode == 0
    assert len(home.rows("messages")) == 3
    assert "mira" in (home.team / "agents.json").read_text()
    removed = world.json("remove", "mira", "--with-messages")
    assert "messages (2)" in removed["results"][0]["message"], removed
    assert [row[2] for row in home.rows("messages")] == ["nora"]
    assert "mira" not in (home.team / "agents.json").read_text() + (home.team / "connected-agents.json").read_text()
    assert "nora" in (home.team / "agents.json").read_text()
    assert "nothing left" in world.json("remove", "mira", "--with-messages")["results"][0]["message"]
    home.database.close()
    assert os.path.exists(home.data / "messages.sqlite")
