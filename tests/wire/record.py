"""The record: which parts it has, how each is taken from a running daemon, and the files that hold it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.wire import former, lists
from tests.wire.shape import differences
from tests.wire.station import Station, station
from tests.wire.story import Story

RECORDED = Path(__file__).parent / "recorded"
LONG = {"registry": {"retention_days": 36_500}, "cleanup": {"trash_retention_hours": 87_600}}
Json = dict[str, Any]


def written() -> Json:
    """What the names in documents, code and `--check` come to."""
    defaults = lists.shipped()
    with station() as at:
        faults = lists.refused(at, defaults)
    return {
        "names": {
            "routes": lists.routes(),
            "verbs and options": lists.options(),
            "events and figures": lists.events_and_figures(),
        },
        "configuration": {"config/agent-watchdog.toml": defaults, "agent-watchdogd --check": faults},
    }


def played() -> Json:
    """One daemon and its story."""
    with station() as at:
        story = Story(at)
        story.play()
        found: Json = {
            "routes": story.routes,
            "verbs": story.verbs,
            "events": story.log_events(),
            "metrics": story.metrics(),
            "schema": schema(at),
        }
        if os.geteuid() == 0:
            found["strangers"] = story.strangers
        assert at.stop() == 0
    return found


def opened() -> Json:
    """What a daemon makes of the registry that a former version left.

    It was told each recorded default when it began, and is then told none of them: it must say that no key has changed.
    """
    shipped = load("configuration")["config/agent-watchdog.toml"]
    explicit = {section: {**shipped[section]} for section in shipped if not isinstance(shipped[section], list)}
    del explicit["daemon"]
    for section, keys in LONG.items():
        explicit[section] |= keys
    with station() as at:
        former.lay(at, (RECORDED / "former.sql").read_text(), load("former-trash"))
        at.configure(explicit, roots=False)
        answers = former.read(at)
        at.configure(LONG, roots=False)
        at.json("POST", "/v1/reload", {})
        answers["keys whose default is not the recorded one"] = at.wait_event("config.reloaded")["changed"]
        assert at.stop() == 0
    return {"former": answers}


def schema(at: Station) -> Json:
    """Tables, indices and the migration of a registry that was made anew, as SQLite has them."""
    with at.registry() as registry:
        rows = registry.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY 1, 2")
        found: Json = {f"{kind} {name}": _lines(sql) for kind, name, sql in rows}
        found["columns"] = {
            table: {row[1]: _column(*row[2:]) for row in registry.execute(f"PRAGMA table_info({table})")}
            for (table,) in registry.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1"
            ).fetchall()
        }
        found["migration"] = registry.execute("SELECT version_num FROM alembic_version").fetchall()
    return found


def _column(kind: str, not_null: int, default: str | None, primary: int) -> str:
    words = [kind, "NOT NULL" if not_null else "", f"DEFAULT {default}" if default else "", "KEY" if primary else ""]
    return " ".join(filter(None, words))


def _lines(sql: str) -> list[str]:
    return [line.strip() for line in sql.splitlines() if line.strip()]


def load(name: str) -> Any:
    """One part as it is recorded; {} where it is not yet."""
    file = RECORDED / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def save(name: str, value: Any) -> None:
    """Readable, and the same text for the same value."""
    (RECORDED / f"{name}.json").write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def changes(parts: Json) -> list[str]:
    """One line for each place where what was seen is not what is recorded."""
    return [f"{name} · {line}" for name in sorted(parts) for line in differences(load(name), parts[name])]


PARTS: tuple[Callable[[], Json], ...] = (written, played, opened)


def record_former() -> None:
    """A story, cut off: its registry and its trash become `former.sql` and `former-trash.json`."""
    with station() as at:
        at.start()
        story = Story(at)
        story.register()
        story.silent_one()
        story.words()
        at.ended(story.stubborn)
        at.wait_event("agent.ended", name="runner")
        story.ends()
        sql, trash = former.write(at, story.bare)
    (RECORDED / "former.sql").write_text(sql)
    save("former-trash", trash)
