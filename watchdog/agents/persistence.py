"""Writes the watched state into the registry, and reports once when the registry fails and when it works again.

A sweep writes the rows in which more than ages has changed (`Heartbeat.unsaved`): writing all of them each time cost
more than the rest of the daemon. Mere ages, and the counts of bare beats, are written once a minute.
"""

from datetime import timedelta

from watchdog.agents.agent import ZERO, Agent
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.core.agent import State, Verdict
from watchdog.core.process import TreeMember
from watchdog.core.redaction import hide_secrets
from watchdog.errors import RegistryUnavailable
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.rows import AgentRow, SweepRow, TreeRow
from watchdog.telemetry.logger import EventLogger

AGES_EVERY = 6  # sweep intervals; a daemon that is killed loses at most this much of all agents' silence
# Seconds after its start in which a daemon writes ages with each sweep: one that is killed repeatedly still inherits
# the silence that earlier ones measured.
YOUNG = 60.0
KEPT = 256  # processes of one tree that are stored, the earliest-started first
PROBE_EVERY = 6  # sweep intervals; a probe of the registry takes a few milliseconds


class AgentPersistence:
    """Writes the fleet to the registry. Registry failures of other parts are reported here, once."""

    def __init__(self, fleet: Fleet, registry: AsyncRegistry, clock: Clock, log: EventLogger) -> None:
        self._fleet = fleet
        self._registry = registry
        self._clock = clock
        self._log = log
        self.trouble: str | None = None  # while the registry is away: the last error; the log has the first one
        self._probed = self._aged = float("-inf")
        self._began = clock.mono()

    async def record(self, interval: float, *, all_rows: bool = False) -> bool:
        """Write the watched state of all agents; False while the registry is away. `interval`: seconds.

        `all_rows`: also rows in which only ages have changed.

        A failure anywhere since the last call is reported now. Its end is reported when a probe of the whole registry
        works and nothing failed since the last call: a fault that no probe meets (a full page) would otherwise begin
        and end with each sweep.
        """
        registry = self._registry
        now = self._clock.mono()
        all_rows = all_rows or now - self._aged >= AGES_EVERY * interval or now - self._began < YOUNG
        try:
            if registry.sync.shared:
                await registry.read(registry.sync.keep_host)
            slack = timedelta(seconds=interval)
            if rows := [row_of(agent) for agent in self._fleet if all_rows or agent.heartbeat.unsaved(slack)]:
                await registry.write(registry.agents.save_sweep, rows)
            await self._record_trees()
            if all_rows:
                self._aged = now
            trouble = registry.sync.engines.trouble
            if trouble is not None:
                self._report(trouble)
            if trouble is not None or self.trouble is not None or now - self._probed >= PROBE_EVERY * interval:
                await registry.write(registry.sync.probe, trial=trouble is not None or self.trouble is not None)
                self._probed = now
        except RegistryUnavailable as error:
            self._report(str(error))
            self._aged = float("-inf")  # which rows were lost now is unknown: all are written again
            return False
        if self.trouble is not None and trouble is None:
            self.trouble = None
            self._log.event("registry.recovered")
        return True

    async def _record_trees(self) -> None:
        """Store the trees of the last scan where they changed: the next daemon starts from them."""
        trees = {}
        for agent in self._fleet:
            if agent.tree.members is agent.tree.members_read and agent.tree.home_cgroup == agent.tree.tree_written[0]:
                continue
            tree = agent.tree.home_cgroup, tuple(member.identity for member in agent.tree.members[:KEPT])
            if tree != agent.tree.tree_written:
                trees[agent.agent_id] = agent, tree, agent.tree.members
            else:
                agent.tree.recorded(agent.tree.members, tree)
        if trees:
            rows = [TreeRow(agent_id, *tree) for agent_id, (_, tree, _) in trees.items()]
            await self._registry.write(self._registry.agents.save_trees, rows)
            for agent, tree, members in trees.values():
                agent.tree.recorded(members, tree)

    def _report(self, error: str) -> None:
        former, self.trouble = self.trouble, error
        if former is None:
            self._log.event("registry.unavailable", error=error)


def row_of(agent: Agent) -> SweepRow:
    """The stored form of an agent, which counts as written from now on; `restore` reads it back."""
    silence, ages, said, rhythm = (
        agent.heartbeat.silence,
        agent.heartbeat.ages,
        agent.heartbeat.said,
        agent.heartbeat.rhythm,
    )
    agent.heartbeat.written()
    after = silence.limits.said or agent.reg.stall_after
    return SweepRow(
        agent_id=agent.agent_id,
        silence_seconds=silence.lasted.total_seconds(),
        watched_seconds=ages.age.total_seconds(),
        beats=rhythm.beats,
        promised=said.promised,
        stall_after_seconds=None if after is None else after.total_seconds(),
        last_heartbeat=rhythm.last_heartbeat,
        # Older daemons read it as blocked, which is treated the same: they do not know `goes_on`.
        state=State.BLOCKED if agent.heartbeat.rests_on else said.state,
        state_seconds=0.0 if agent.heartbeat.rests_on else ages.state_age.total_seconds(),
        finished=said.finished,
        rests_on=agent.heartbeat.subagents.resting_on,
        verdict=agent.judged.verdict,
        note=said.note and hide_secrets(said.note),
        last_progress=said.progress,
        progress_silence_seconds=(ages.progress_age or ZERO).total_seconds(),
        lease_left_seconds=ages.lease_left.total_seconds(),
        tool=said.tool and hide_secrets(said.tool),
        tool_left_seconds=ages.tool_left.total_seconds(),
        speaker_pid=agent.heartbeat.speaker_pid,
        hears=agent.heartbeat.reads_answers,
        rung=agent.ladder.rung,
    )


def restore(agent: Agent, row: AgentRow) -> None:
    """Restore what an earlier daemon watched; the time without a daemon does not count."""
    heartbeat, reg = agent.heartbeat, agent.reg
    heartbeat.rhythm.restore(row.beats, row.last_heartbeat)
    heartbeat.said.promise(row.promised or reg.stall_after is not None)
    state = heartbeat.subagents.restore(row.rests_on, row.state, kept=reg.source == "run")
    heartbeat.said.restore(state, row.note, row.tool, row.last_progress, finished=row.finished)
    heartbeat.silence.restart(timedelta(seconds=row.silence_seconds))
    heartbeat.ages.restore(
        timedelta(seconds=row.watched_seconds),
        timedelta(seconds=row.state_seconds),
        None if row.last_progress is None else timedelta(seconds=row.progress_silence_seconds),
        timedelta(seconds=row.lease_left_seconds or 0),
        timedelta(seconds=row.tool_left_seconds or 0),
    )
    heartbeat.sent_by(row.speaker_pid)
    if row.hears:
        heartbeat.note_reader()
    # Only a waiting verdict is taken over as reported; silence begins again, and so do the reports about it.
    agent.judged.restore(row.verdict if row.verdict is Verdict.WAITING else None, row.beats)
    members = tuple(
        TreeMember(one, parent_pid=0, uid=reg.owner_uid, name="", state="?", via="remembered") for one in row.members
    )
    agent.tree.restore(members, (row.home_cgroup, row.members))
    agent.ladder.climb(row.rung, heartbeat)  # must come last; the time granted by the step begins again
