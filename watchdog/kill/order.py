"""A kill request as it was asked for; the registry keeps the same as JSON, so a later daemon can go on with it.

`KillOrder` is a value: whoever wants something else of it makes another. How far it has come is in `progress`.
"""

import os
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import cache

from watchdog.agents.agent import Agent
from watchdog.core.kill import KillOptions, KillStep, Reason
from watchdog.core.ownership import ROOT
from watchdog.core.process import Identity, Presence, TreeMember
from watchdog.processes.identity import boot_id, presence, read_identity

AUTOMATIC = frozenset({Reason.STALLED, Reason.EXPIRED, Reason.LINGERING, Reason.FAILED_TO_START})
WITHDRAWN_BY_BEAT = AUTOMATIC - {Reason.EXPIRED}  # for want of a beat, which may still come
ASKING = frozenset({KillStep.REQUESTED, KillStep.ASKED, KillStep.PROGRAM, KillStep.KEYS})  # before the claim
BEFORE_SIGNALS = ASKING | {KillStep.LOOKED}  # at which nothing has been signalled
STOPPING = frozenset({KillStep.FREEZE, KillStep.STOP, KillStep.KILL})  # processes may be stopped or frozen by us


@dataclass(frozen=True, slots=True, eq=False)
class KillOrder:
    """What is asked for. `beats` is the agent's count when it was decided: one more withdraws a stall."""

    request_id: str
    agent: Agent
    reason: Reason
    options: KillOptions
    by: str
    why: str
    beats: int
    finished: bool = False  # its agent's work was done before any of this began
    resumed: bool = False  # taken up after a restart
    former: str | None = None  # the daemon, gone now, that had claimed it

    @property
    def sender(self) -> int | None:
        """The user by whose right its signals are sent; None: by the daemon's own.

        The host's daemon is root, which may signal all: only root orders that. A user's daemon is told by the kernel.
        """
        owner = self.agent.reg.owner_uid
        return None if self.options.by_root or owner == ROOT or os.geteuid() != ROOT else owner

    @property
    def holders(self) -> tuple[str, str | None]:
        """Whose claim on it is ours to use: this daemon's, or that of the one whom it succeeds."""
        return daemon_identity(self.agent.reg.host), self.former

    def asked_at(self, step: KillStep) -> bool:
        """Whether its agent was asked to end by itself, when it has come to that step."""
        return self.options.ask is not None and step is not KillStep.REQUESTED

    def ended_by_itself(self, step: KillStep) -> "KillOrder":
        """The same when its agent ended before the claim: we have not ended it, whatever it left."""
        when = "when it was asked to stop" if self.asked_at(step) else "before the kill began"
        return replace(self, reason=Reason.GONE, why=f"it exited by itself {when}")

    def merged(self, reason: Reason, options: KillOptions, by: str, why: str, *, begun: bool) -> "KillOrder":
        """The same with what a second request wants: more force counts.

        The daemon's own becomes the person's who wants the same, for his reason: no heartbeat, no doubt and no restart
        calls it off, unless it has `begun`. Who wants no cleanup gets none.
        """
        order, mine = self, self.options
        if by != "daemon":
            if self.reason in AUTOMATIC and not begun and reason in (Reason.OPERATOR, Reason.STOP):
                order = replace(self, reason=reason, by=by, why=why)
            grace = mine.grace if options.grace is None else options.grace
            cleanup, cancel = mine.cleanup and options.cleanup, mine.cancel or options.cancel
            mine = replace(mine, only_ask=False, grace=grace, cleanup=cleanup, cancel=cancel)
        force, by_root = mine.force or options.force, mine.by_root or options.by_root
        return replace(order, options=replace(mine, force=force, by_root=by_root))

    def json(self) -> dict[str, object]:
        """Its options as its row keeps them; `from_json` reads them."""
        return to_json(self.options, self.beats, self.why, finished=self.finished)


@cache
def daemon_identity(host: str) -> str:
    """This daemon: its host, boot, pid and start ticks."""
    me = read_identity(os.getpid(), host)
    ticks = me.start_ticks if me else 0  # a daemon always sees itself; 0 is nobody's, so it reads as gone
    return f"daemon {os.getpid()} {ticks} of boot {boot_id()} of host {host}"


def claim_is_stale(claimed_by: str | None, host: str) -> bool:
    """Whether nobody holds the claim any more: there is none, or its daemon's process is proved absent.

    A claim of another boot of this host is nobody's: that boot is over, or its daemon would be heard (`claim_host`).
    Text that no daemon of ours wrote names no process, so nobody can be asked.
    """
    words = (claimed_by or "").split(" ", 8)
    if len(words) != 9 or not (words[1].isdigit() and words[2].isdigit()):
        return True
    identity = Identity(host=words[8], boot_id=words[5], pid=int(words[1]), start_ticks=int(words[2]))
    if identity.pid == os.getpid() and claimed_by == daemon_identity(host):
        return True  # our own, and we know of no such order: the answer to our claim was lost
    return presence(identity, None, host=host) is Presence.ABSENT


_MEMBER, _IDENTITY = (tuple(field.name for field in fields(kind)) for kind in (TreeMember, Identity))


def to_json(options: KillOptions, beats: int, why: str, *, finished: bool | None = None) -> dict[str, object]:
    """`finished`: whether the agent's work was done by then; None: who orders does not know."""
    return {
        "force": options.force,
        "grace_seconds": None if options.grace is None else options.grace.total_seconds(),
        "cleanup": options.cleanup,
        "ask_seconds": None if options.ask is None else options.ask.total_seconds(),
        "only_ask": options.only_ask,
        "cancel": options.cancel,
        "with_messages": options.with_messages,
        "by_root": options.by_root,
        "beats": beats,
        "why": why,
        "finished": finished,
    }


def from_json(stored: dict[str, object]) -> tuple[KillOptions, int, str]:
    beats = stored.get("beats")
    options = KillOptions(
        force=stored.get("force") is True,
        grace=_seconds(stored.get("grace_seconds")),
        cleanup=stored.get("cleanup") is not False,
        ask=_seconds(stored.get("ask_seconds")),
        only_ask=stored.get("only_ask") is True,
        cancel=stored.get("cancel") is True,
        with_messages=stored.get("with_messages") is True,
        by_root=stored.get("by_root") is True,
    )
    return options, beats if isinstance(beats, int) else 0, str(stored.get("why", ""))


def _seconds(stored: object) -> timedelta | None:
    return timedelta(seconds=stored) if isinstance(stored, int | float) else None


def member_json(member: TreeMember) -> dict[str, object]:
    """As `member_of` reads it back. Not asdict(), which copies each value deeply."""
    flat = {name: getattr(member, name) for name in _MEMBER}
    return {**flat, "identity": {name: getattr(member.identity, name) for name in _IDENTITY}}


def member_of(stored: dict[str, object]) -> TreeMember:
    """A member as it was committed. A stored one is only a memory: `pin` asks the kernel before anything is done."""
    facts = dict(stored)
    identity = facts.pop("identity")
    if not isinstance(identity, dict):
        raise TypeError(f"a member of a kill request has no identity: {stored}")
    return TreeMember(identity=Identity(**identity), **facts)  # type: ignore[arg-type] # checked by its constructor's use
