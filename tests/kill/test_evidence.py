"""What was known of an agent right before its first signal."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kill.shop import shop
from watchdog.kill import evidence as testimony
from watchdog.probes.panes import Panes


def test_what_was_known_before_the_first_signal_is_kept_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes, what each source said, the end of its log; a token in its last note or log is in no row."""
    monkeypatch.setattr(testimony, "DEADLINE", 20.0)  # a loaded machine's helper takes its time to start
    (tmp_path / "log").write_text("one\nexport TOKEN=hunter2\nlast words")

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            agent.heartbeat.said.note, agent.heartbeat.said.tool = (
                "export API_TOKEN=hunter2",
                "Bash: curl -u token=hunter2",
            )
            agent.reg = replace(agent.reg, log=str(tmp_path / "log"))
            assert await made.worker.finished(await made.order(agent), 20)

            (row,) = await made.registry.read(made.registry.kills.requests_of, agent.agent_id)
            evidence: Any = row.evidence
            (seen,), said = evidence["processes"], evidence["said"]
            assert (seen["pid"], seen["state"]) == (process.pid, "S")
            assert said["verdict"] == "stalled: silent"
            assert (said["heartbeat"]["beats"], said["heartbeat"]["promised"]) == (1, True)
            assert said["tool"]["name"] == "Bash: curl -u token=***"
            assert said["activity"].startswith("none seen")
            assert said["last_words"]["note"] == "export API_TOKEN=***"
            assert said["last_words"]["output"] == ["one", "export TOKEN=***", "last words"]
            (tmp_path / "log").write_text("")
            words: Any = (
                await testimony.collect_evidence(agent, None, made.owners, Panes(made.registry, made.owners))
            )["last_words"]
            assert words["output"].startswith("none")
            kept = await made.registry.read(made.registry.agents.get, agent.agent_id)
            assert kept is not None
            assert (kept.note, kept.tool) == ("export API_TOKEN=***", "Bash: curl -u token=***")

    asyncio.run(story())
    assert b"hunter2" not in b"".join(file.read_bytes() for file in tmp_path.glob("registry.db*"))
