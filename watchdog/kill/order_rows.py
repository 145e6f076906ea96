"""A kill request as JSON in its row, and back: how it is to be done, and who belongs to the tree."""

from dataclasses import fields
from datetime import timedelta

from watchdog.core.kill import KillOptions
from watchdog.core.process import Identity, TreeMember

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
