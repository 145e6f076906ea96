"""A reload that fails halfway leaves the former settings, in every part."""

import asyncio
from pathlib import Path
from typing import Any

from watchdog.config.settings import Settings, load
from watchdog.host.service_manager import ServiceManager
from watchdog.service.reload import ConfigReload
from watchdog.telemetry.logger import get_logger


def test_a_part_that_cannot_take_the_new_settings_keeps_the_old_everywhere(tmp_path: Path) -> None:
    """Neither half of the new ones nor the end of the daemon; `status` tells the reason until a reload goes well."""
    file = tmp_path / "config.toml"
    file.write_text("[sweep]\ninterval_seconds = 10\n")
    old = load(str(file))
    holding: list[Settings] = [old]
    broken = True

    class Part:
        def apply(self, settings: Settings) -> None:
            holding.append(settings)
            if broken and settings is not old:
                raise OSError(28, "No space left on device")

    async def main() -> None:
        nonlocal broken
        tracker: Any = None  # nobody asks
        reload = ConfigReload(old, lambda: load(str(file)), asyncio.Lock(), tracker, ServiceManager({}), get_logger())
        file.write_text("[sweep]\ninterval_seconds = 20\n")
        await reload.run([Part()])
        assert holding[-1] is reload.settings is old
        assert reload.problems == ["not applied: OSError: [Errno 28] No space left on device"]
        broken = False
        await reload.run([Part()])
        assert holding[-1].interval.total_seconds() == 20
        assert not reload.problems

    asyncio.run(main())
