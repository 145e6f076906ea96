"""The order of cleanup: what runs, what is recorded first, what is repeated and what is not."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from tests.owner.repositories import context
from watchdog.cleanup.cleanup import run_hooks
from watchdog.core.agent import Status
from watchdog.core.hooks import HookContext, HookOutcome, HookResult, HookSpec
from watchdog.errors import RegistryUnavailable

ANY = frozenset(Status)
NOW = timedelta(0)


@dataclass
class Row:
    """A run as the registry keeps it."""

    status: str
    attempts: int
    message: str = ""
    details: dict[str, object] = field(default_factory=dict)


@dataclass
class Scene:
    """Journal, helpers and log in one; records all calls in `story`."""

    answers: dict[str, list[HookResult | Exception]] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    down: bool = False
    heard: list[HookContext] = field(default_factory=list)

    async def open_run(self, about: HookContext) -> Row:
        if self.down:
            raise RegistryUnavailable("away")
        row = self.rows.setdefault(about.run_id, Row("running", 0))
        if row.status not in ("done", "nothing", "kept"):
            row.status, row.attempts = "running", row.attempts + 1
            self.story.append(f"open {about.hook}")
        return row

    async def finish_run(self, about: HookContext, result: HookResult, event: str, facts: object) -> None:
        self.rows[about.run_id].status = result.outcome.value
        self.story.append(f"finish {about.hook} {result.outcome}")

    async def run_hook(self, spec: HookSpec, about: HookContext) -> HookResult:
        self.story.append(f"run {spec.name}")
        self.heard.append(about)
        queue = self.answers.get(spec.name) or [HookResult(HookOutcome.DONE)]
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def info(self, event: str, **facts: object) -> None:
        self.story.append(f"log {event} {facts['hook']} {facts['outcome']}")

    def play(self, *hooks: HookSpec, observe: bool = False, **about: object) -> list[tuple[str, HookOutcome]]:
        """Run the hooks and return how each ended."""
        results = asyncio.run(run_hooks(hooks, self.context_for(about), self, self, self, observe=observe, pause=NOW))
        return [(spec.name, result.outcome) for spec, result in results]

    def context_for(self, about: dict[str, object]) -> Callable[[HookSpec], HookContext]:
        return lambda spec: context(hook=spec.name, run_id=f"agent/{spec.name}", **about)


def command(name: str, **changes: object) -> HookSpec:
    """A command hook."""
    return HookSpec(**{"name": name, "on": ANY, "command": ("true",), **changes})  # type: ignore[arg-type]


def test_hooks_run_in_the_configured_order_each_journaled_before_it_runs() -> None:
    """Invariant 7: the intent is committed first."""
    scene = Scene()

    assert scene.play(command("b"), command("a")) == [("b", HookOutcome.DONE), ("a", HookOutcome.DONE)]
    assert scene.story == [
        "open b",
        "run b",
        "finish b done",
        "log cleanup.hook_finished b done",
        "open a",
        "run a",
        "finish a done",
        "log cleanup.hook_finished a done",
    ]


def test_only_hooks_for_this_outcome_run() -> None:
    """`on` decides; a worktree stays after `stopped`."""
    scene = Scene()
    other = command("other", on=frozenset({Status.STOPPED}))

    assert scene.play(other, command("mine", on=frozenset({Status.KILLED}))) == [("mine", HookOutcome.DONE)]


def test_what_was_never_registered_is_passed_over_and_only_that() -> None:
    """No worktree and no temp dir (case F3): the rest runs."""
    scene = Scene()
    hooks = command("w", command=None, run="worktree"), command("t", command=None, run="temp_dir"), command("c")

    assert scene.play(*hooks, temp_dir="/tmp/x") == [
        ("w", HookOutcome.NOTHING),
        ("t", HookOutcome.DONE),
        ("c", HookOutcome.DONE),
    ]
    assert "open w" not in scene.story


def test_all_hooks_run_whatever_became_of_the_one_before() -> None:
    """Case H15: one fails, one is late, one raises; the last runs, all are recorded."""
    scene = Scene(
        {
            "fails": [HookResult(HookOutcome.FAILED, "no")],
            "late": [HookResult(HookOutcome.TIMEOUT)],
            "raises": [RuntimeError("bug")],
        }
    )
    hooks = [command(name, retries=0) for name in ("fails", "late", "raises", "last")]

    assert [outcome for _, outcome in scene.play(*hooks)] == ["failed", "timeout", "failed", "done"]
    assert [line for line in scene.story if "cleanup.hook_failed" in line] == [
        "log cleanup.hook_failed fails failed",
        "log cleanup.hook_failed late timeout",
        "log cleanup.hook_failed raises failed",
    ]


def test_a_failure_is_repeated_until_its_tries_are_used_up() -> None:
    """`retries` tries follow the first; each is journaled; then the failure is reported once."""
    scene = Scene({"h": [HookResult(HookOutcome.FAILED)]})

    assert scene.play(command("h", retries=2)) == [("h", HookOutcome.FAILED)]
    assert scene.story.count("run h") == 3
    assert scene.story.count("open h") == 3
    assert sum("hook_failed" in line for line in scene.story) == 1


def test_a_later_try_that_succeeds_ends_it() -> None:
    """For example when a busy disk made the first try fail."""
    scene = Scene({"h": [HookResult(HookOutcome.TIMEOUT), HookResult(HookOutcome.DONE)]})

    assert scene.play(command("h", retries=2)) == [("h", HookOutcome.DONE)]
    assert scene.story.count("run h") == 2


def test_each_try_is_told_anew_who_else_works_there() -> None:
    """Between two tries another agent may have started there; an old context would let its place be removed."""
    scene = Scene({"h": [HookResult(HookOutcome.FAILED), HookResult(HookOutcome.DONE)]})
    told: list[HookContext] = []
    plain = scene.context_for({})

    def context_for(spec: HookSpec) -> HookContext:
        told.append(plain(spec))
        return told[-1]

    asyncio.run(run_hooks([command("h", retries=2)], context_for, scene, scene, scene, pause=NOW))
    assert scene.heard == [told[-2], told[-1]]
    assert scene.heard[0] is not scene.heard[1]


def test_kept_is_an_answer_and_not_repeated() -> None:
    """The hook left something on purpose."""
    scene = Scene({"h": [HookResult(HookOutcome.KEPT)]})

    assert scene.play(command("h", retries=5)) == [("h", HookOutcome.KEPT)]
    assert scene.story.count("run h") == 1


def test_a_run_that_the_journal_knows_as_done_is_not_repeated() -> None:
    """After a daemon was killed between two hooks, the next one continues with the second."""
    scene = Scene(rows={"agent/a": Row("kept", 1, "busy")})

    assert scene.play(command("a"), command("b")) == [("a", HookOutcome.KEPT), ("b", HookOutcome.DONE)]
    assert "run a" not in scene.story


def test_a_run_in_which_the_daemon_died_is_tried_again_though_its_tries_are_used_up() -> None:
    """Otherwise the directory would stay as the dead daemon left it."""
    scene = Scene(rows={"agent/a": Row("running", 1)})

    assert scene.play(command("a", retries=0)) == [("a", HookOutcome.DONE)]


def test_without_the_registry_nothing_is_run() -> None:
    """The intent comes before the action; the caller tries again later."""
    scene = Scene(down=True)

    with pytest.raises(RegistryUnavailable):
        scene.play(command("a"))
    assert scene.story == []


def test_observe_mode_decides_and_says_the_same_but_runs_nothing() -> None:
    """It records no run either: nothing was meant to be done."""
    scene = Scene()

    assert scene.play(command("a"), observe=True) == [("a", HookOutcome.NOTHING)]
    assert scene.story == ["log cleanup.hook_finished a observed"]


@pytest.mark.parametrize(
    ("first", "runs"),
    [
        (HookResult(HookOutcome.DONE), True),
        (HookResult(HookOutcome.NOTHING), True),
        (HookResult(HookOutcome.KEPT, "it is dirty"), False),
        (HookResult(HookOutcome.FAILED, "no disk"), False),
        (HookResult(HookOutcome.TIMEOUT), False),
    ],
)
def test_a_hook_runs_only_when_what_it_needs_ended_well(first: HookResult, runs: bool) -> None:
    """A hook that drops a board's entry for a worktree must wait until the tree is gone; one without `needs` runs."""
    scene = Scene({"tree": [first]})
    hooks = command("tree", retries=0), command("board", needs=("tree",)), command("last")

    played = dict(scene.play(*hooks))
    assert ("run board" in scene.story) == runs
    assert ("log cleanup.hook_skipped board skipped" in scene.story) != runs
    assert ("open board" in scene.story) == runs  # not opened: a later daemon may still run it
    assert played["last"] is HookOutcome.DONE


def test_who_needs_a_hook_that_was_not_run_is_not_run_either() -> None:
    """Along a chain, and when the needed one is not for this outcome; a needed hook without work does not block."""
    scene = Scene({"a": [HookResult(HookOutcome.FAILED)]})
    other = command("other", on=frozenset({Status.STOPPED}))
    tree = command("tree", command=None, run="worktree")
    chain = command("a", retries=0), command("b", needs=("a",)), command("c", needs=("b",))
    hooks = *chain, other, tree, command("d", needs=("other",)), command("e", needs=("tree",))

    scene.play(*hooks)
    assert [line for line in scene.story if line.startswith("run")] == ["run a", "run e"]


def test_before_each_hook_it_is_told_what_is_done_and_what_is_left() -> None:
    """Hooks that have nothing to do are not listed: unregistered subject, or not for that outcome."""
    scene, heard = Scene(), []
    other = next(status for status in Status if status is not context().outcome)
    hooks = (
        HookSpec("worktree", ANY, run="worktree"),
        HookSpec("temp", ANY, run="temp_dir"),
        HookSpec("mine", ANY, command=("true",)),
        HookSpec("never", frozenset({other}), command=("true",)),
    )

    def progress(results: list[tuple[HookSpec, HookResult]], left: tuple[str, ...]) -> None:
        heard.append(([spec.name for spec, _ in results], left))

    about = scene.context_for({"temp_dir": None, "worktree": "/somewhere"})
    asyncio.run(run_hooks(hooks, about, scene, scene, scene, progress=progress))
    assert heard[0] == ([], ("worktree", "mine"))
    assert heard[2] == (["worktree", "temp"], ("mine",))
    assert heard[-1][1] == ()
