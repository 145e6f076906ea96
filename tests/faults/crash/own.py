"""A daemon in the test's own event loop: all of its real parts, without its clock, its lock and its door.

The test says when it sweeps. Agents are real processes.
"""

import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from watchdog.agents.agent import Agent
from watchdog.clock import Clock
from watchdog.config import settings as config
from watchdog.core.agent import Beat, Registration, Status
from watchdog.host.service_manager import ServiceManager
from watchdog.processes import identity
from watchdog.service import wiring
from watchdog.service.signal_flags import SIGNALS, SignalFlags
from watchdog.service.wiring import Parts, Startup
from watchdog.telemetry import logger

CONFIG = """
[daemon]
state_dir = "{directory}"
runtime_dir = "{directory}"
[registry]
url = "{url}"
[sweep]
interval_seconds = 10
[stall]
after_seconds = 60
[kill]
grace_seconds = {grace}
max_per_minute = 100000
[hold]
mass_stall_count = 1000
cpu_pressure_percent = 100
[log]
file = "{directory}/logs/daemon.log"
format = "json"
"""


@asynccontextmanager
async def own_daemon(
    directory: Path,
    *,
    url: str = "",
    grace: float = 1,
    hooks: str = "",
    text: str = CONFIG,
    clock: Clock | None = None,
) -> AsyncIterator[Parts]:
    """Its parts are made, and what the registry holds is taken up. `text`: its configuration; `clock`: its clocks."""
    for name in ("notify", "logs"):
        (directory / name).mkdir(mode=0o700, exist_ok=True)
    file = directory / f"{secrets.token_hex(4)}.toml"
    file.write_text(text.format(directory=directory, url=url, grace=grace) + hooks)
    settings = config.load(str(file))
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    sink = logger.set_up("info", settings.log.format, settings.log.file)
    process = Startup(
        settings, lambda: settings, ServiceManager({}), logger.get_logger(), sink, clock or Clock(), locks=None
    )
    try:
        async with AsyncExitStack() as held:
            signals = SignalFlags(lambda: None)
            held.callback(signals.close)
            parts = await wiring.build(process, held)
            await parts.recovery.restore_all()
            yield parts
            await parts.control.close()
            await parts.kills.close()
            parts.tracker.close()
    finally:
        logger.finish(sink)
        for number, handler in handlers.items():  # a daemon that ends ignores them, and so would what is started later
            signal.signal(number, handler)


async def admit(daemon: Parts, pid: int, parent: str | None = None, agent_id: str | None = None) -> Agent:
    """The process as an agent that has beaten once and is silent for an hour since."""
    found = identity.read_identity(pid, daemon.host)
    now, agent_id = datetime.now(UTC), agent_id or secrets.token_hex(16)
    reg = Registration(
        agent_id,
        f"a-{agent_id[:8]}",
        os.getuid(),
        daemon.host,
        daemon.boot_id,
        identity=found,
        parent_id=parent,
        created_at=now,
    )
    path = daemon.tracker.sockets.open(agent_id, reg.owner_uid)
    await daemon.registry.write(daemon.registry.agents.add, reg, Status.RUNNING, now, "test", path)
    agent = Agent(reg, daemon.reload.settings.policy_for(reg), Status.RUNNING, path)
    agent.heartbeat.said.promise(True)
    agent.judged.first_look = False
    daemon.tracker.admit(agent)
    agent.beat(Beat(), daemon.clock.mono(), now)
    silence = agent.heartbeat.silence
    silence.touched, silence.lasted, silence.doubts.late_looks = None, timedelta(hours=1), 9
    return agent
