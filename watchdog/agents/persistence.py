"""What was watched goes into the registry; and whether the registry works is told, once a change.

A sweep writes the rows in which more than time has changed (`Agent.unsaved`): all of them each time cost more than the
rest of the daemon. What only aged, and how often somebody said no more than that he lives, is written once a minute.
"""

from datetime import timedelta

from watchdog.agents.fleet import ZERO, Agent, Fleet
from watchdog.clock import Clock
from watchdog.core.agent import State, Verdict
from watchdog.core.process import TreeMember
from watchdog.core.redaction import hide_secrets
from watchdog.errors import RegistryUnavailable
from watchdog.registry.rows import AgentRow, SweepRow, TreeRow
from watchdog.registry.store import AsyncStore
from watchdog.telemetry.logger import EventLogger

AGES_EVERY = 6  # sweep intervals; a daemon that was killed knows at most so much less of everybody's silence
YOUNG = (
    60.0  # seconds after its start in which a daemon writes them with each sweep: one that is killed again and again
)
# knows what those before it have watched
KEPT = 256  # processes of one tree that are written down, the first that were started
PROBE_EVERY = 6  # sweep intervals; a probe of the registry takes a few milliseconds


class AgentPersistence:
    """Writes the fleet down. Whoever else fails at the registry keeps it to himself: it is told here."""

    def __init__(self, fleet: Fleet, store: AsyncStore, clock: Clock, log: EventLogger) -> None:
        self._fleet = fleet
        self._store = store
        self._clock = clock
        self._log = log
        self.trouble: str | None = None  # while it is away: what went wrong last; the log has what went wrong first
        self._probed = self._aged = float("-inf")
        self._began = clock.mono()

    async def record(self, interval: float, *, everybody: bool = False) -> bool:
        """Write what was watched, for all in one statement; False while the registry is away. `interval`: seconds.

        `everybody`: also those in whose rows only time has changed.

        A failure anywhere since the last time is told now. Its end is told when a probe of the whole registry works
        and nothing failed since the last time: what no probe meets (a full page) else begins and ends with each sweep.
        """
        store = self._store.store
        now = self._clock.mono()
        everybody = everybody or now - self._aged >= AGES_EVERY * interval or now - self._began < YOUNG
        try:
            if store.shared:
                await self._store.read(store.keep_host)
            slack = timedelta(seconds=interval)
            if rows := [row_of(agent) for agent in self._fleet if everybody or agent.unsaved(slack)]:
                await self._store.write(store.save_sweep, rows)
            await self._record_trees()
            if everybody:
                self._aged = now
            trouble = store.engines.trouble
            if trouble is not None:
                self._tell(trouble)
            if trouble is not None or self.trouble is not None or now - self._probed >= PROBE_EVERY * interval:
                await self._store.write(store.probe, trial=trouble is not None or self.trouble is not None)
                self._probed = now
        except RegistryUnavailable as error:
            self._tell(str(error))
            self._aged = float("-inf")  # whose row was lost now is not told apart: all are written again
            return False
        if self.trouble is not None and trouble is None:
            self.trouble = None
            self._log.event("registry.recovered")
        return True

    async def _record_trees(self) -> None:
        """Whom the last scan saw, where it was somebody else than before: a daemon after us begins with those."""
        trees = {}
        for agent in self._fleet:
            if agent.members is agent.members_read and agent.home_cgroup == agent.tree_written[0]:
                continue
            tree = agent.home_cgroup, tuple(member.identity for member in agent.members[:KEPT])
            if tree != agent.tree_written:
                trees[agent.agent_id] = agent, tree, agent.members
            else:
                agent.members_read = agent.members
        if trees:
            rows = [TreeRow(agent_id, *tree) for agent_id, (_, tree, _) in trees.items()]
            await self._store.write(self._store.store.save_trees, rows)
            for agent, tree, members in trees.values():
                agent.tree_written, agent.members_read = tree, members

    def _tell(self, error: str) -> None:
        former, self.trouble = self.trouble, error
        if former is None:
            self._log.event("registry.unavailable", error=error)


def row_of(agent: Agent) -> SweepRow:
    """What is written down of an agent, and counts as written from now on; `restore` reads it back."""
    agent.changed, agent.silence_written = False, agent.silence
    after = agent.after_said or agent.reg.stall_after
    return SweepRow(
        agent_id=agent.agent_id,
        silence_seconds=agent.silence.total_seconds(),
        watched_seconds=agent.age.total_seconds(),
        beats=agent.beats,
        promised=agent.promised,
        stall_after_seconds=None if after is None else after.total_seconds(),
        last_heartbeat=agent.last_heartbeat,
        # To an older daemon it is blocked, which is bound as this is: it does not know what goes on.
        state=State.BLOCKED if agent.rests_on else agent.state,
        state_seconds=0.0 if agent.rests_on else agent.state_age.total_seconds(),
        finished=agent.finished,
        rests_on=agent.resting_on,
        verdict=agent.verdict,
        note=agent.note and hide_secrets(agent.note),
        last_progress=agent.progress,
        progress_silence_seconds=(agent.progress_age or ZERO).total_seconds(),
        lease_left_seconds=agent.lease_left.total_seconds(),
        tool=agent.tool and hide_secrets(agent.tool),
        tool_left_seconds=agent.tool_left.total_seconds(),
        speaker_pid=agent.speaker_pid,
        hears=agent.hears,
        rung=agent.rung,
    )


def restore(agent: Agent, row: AgentRow) -> None:
    """Take over what an earlier daemon watched; the time without one does not count."""
    agent.beats, agent.last_heartbeat = row.beats, row.last_heartbeat
    agent.beats_judged = row.beats
    agent.promised = row.promised or agent.reg.stall_after is not None
    agent.state, agent.note, agent.tool, agent.progress = row.state, row.note, row.tool, row.last_progress
    agent.state_age, agent.finished = timedelta(seconds=row.state_seconds), row.finished
    agent.goes_on_with(row.rests_on)
    if row.verdict is Verdict.WAITING:  # told; of silence we begin anew, and so does what is told of it
        agent.verdict = row.verdict
    agent.age = timedelta(seconds=row.watched_seconds)
    agent.silence = timedelta(seconds=row.silence_seconds)
    agent.lease_left = timedelta(seconds=row.lease_left_seconds or 0)
    agent.tool_left = timedelta(seconds=row.tool_left_seconds or 0)
    agent.speaker_pid, agent.hears = row.speaker_pid, row.hears
    agent.home_cgroup, agent.tree_written = row.home_cgroup, (row.home_cgroup, row.members)
    agent.members = agent.members_read = tuple(
        TreeMember(one, parent_pid=0, uid=agent.reg.owner_uid, name="", state="?", via="remembered")
        for one in row.members
    )
    if row.last_progress is not None:
        agent.progress_age = timedelta(seconds=row.progress_silence_seconds)
    agent.climbed(row.rung)  # last; the time that it is given begins anew
