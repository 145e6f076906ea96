"""The daemon's side of the owners' helpers: one per uid, called with a deadline, killed and replaced if late.

The daemon opens no path of an owner; helpers do. Their answers are claims of that uid: they never decide about another
uid's process or path, and a missing answer is missing evidence, not proof. A hanging helper delays no other owner, as
every owner has a separate process, and so has every hook run. Each is a transient unit if systemd runs us as the host's
daemon (`transient_units`), else our child. Idle helpers are stopped, and their number is limited (`vacancies`). Their
restrictions are in `owner.confinement`.
"""

import asyncio
import contextlib
import itertools
import json
import os
import resource
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from watchdog.config.settings import Settings
from watchdog.core import hooks
from watchdog.core.hooks import CleanupSettings, HookContext, HookOutcome, HookResult, HookSpec
from watchdog.errors import OwnerCallFailed
from watchdog.helpers import nss, transient_units
from watchdog.helpers.transient_units import Account
from watchdog.helpers.vacancies import Vacancies
from watchdog.host import children
from watchdog.host.children import Child
from watchdog.telemetry.logger import EventLogger

HELPER = ("-I", "-m", "watchdog.owner.helper")
LINE_LIMIT = 1 << 20  # bytes of a request and of an answer; the same as in the helper
STUCK_LIMIT = 4  # killed helpers of one uid that do not exit (D state); with more, that uid gets no new ones
TYPING = 10.0  # seconds to type all keys into a pane
LET_GO = 3.0  # seconds for a single-call helper to kill its tree when its caller stopped waiting
BACKSTOP = 10.0  # seconds after a hook's deadline for a single-call helper to kill the tree and answer
UNIT_GONE = 2.0  # seconds to wait for a killed unit to disappear; one in D state stays
HOOK_DESCRIPTORS = 16  # per concurrent hook: three pipes, doubled while it starts, and a pidfd
STDERR_KEPT = 2000  # bytes of a helper's last output on stderr
# Seconds without a call after which a shared helper is stopped: three sweeps. A helper takes 13 MB; starting one takes
# 0.1 s of CPU, and 50 ms more as a transient unit.
IDLE = 30.0
CONFINEMENTS = ("seccomp", "landlock")
MOST = 64  # helpers at a time for all owners together; 13 MB each


@dataclass(eq=False, slots=True)
class _Helper:
    """One helper process and the calls that wait for it."""

    process: Child
    unit: str | None = None  # its transient unit, if it is one; `process` then only waits for the unit
    waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    last_words: bytearray = field(default_factory=bytearray)
    gone: bool = False  # there will be no more answers
    retired: bool = False  # we are waiting for it to exit
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    idle: asyncio.TimerHandle | None = None  # set while no caller waits for an answer
    since: float = 0.0  # since when it is idle, in the loop's time

    def lose(self, reason: str, message: str) -> None:
        """Fail all waiting calls: there will be no more answers."""
        self.gone = True
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(OwnerCallFailed(reason, message))
        self.waiting.clear()


def settings_for(settings: Settings) -> CleanupSettings:
    """The part of the configuration that the built-in hooks need."""
    return CleanupSettings(
        roots=tuple(settings.cleanup.roots),
        trash_retention_hours=settings.cleanup.trash_retention_hours,
        dirty_worktree=settings.cleanup.dirty_worktree,
        merged_branch=settings.cleanup.merged_branch,
        rebuildable=settings.cleanup.rebuildable,
        tasks=tuple((one.user or str(os.geteuid()), one.path) for one in settings.sources if one.kind == "fleet_tasks"),
        protected=(settings.state_dir, settings.runtime_dir),
    )


class HelperPool:
    """The helpers of all owners.

    `argv` starts a helper (tests pass their own); `settings` are for the built-in hooks; `transient`: helpers are
    transient units; `unconfined` is called once for each kind of confinement that this host lacks, with the reason.
    `user_of` returns the user that a uid belongs to: the places for helpers are shared among users, not uids.
    """

    def __init__(
        self,
        argv: Sequence[str] | None = None,
        *,
        settings: hooks.CleanupSettings | None = None,
        transient: bool = False,
        log: EventLogger | None = None,
        user_of: Callable[[int], int] = lambda uid: uid,
    ) -> None:
        self._log = log
        self._lacking: set[str] = set()
        self._transient = transient
        self._argv = tuple(argv) if argv else (sys.executable, *HELPER)
        self.settings = settings or hooks.CleanupSettings()
        self._shared: dict[int, _Helper] = {}
        # By uid; a lock exists while a caller holds it or waits for it.
        self._starting: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._ending: dict[int, set[asyncio.Task[None]]] = {}
        self._alone: set[_Helper] = set()
        self._persons: dict[int, asyncio.Future[tuple[Account, list[int]]]] = {}
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._vacancies = Vacancies(
            max(8, min(MOST, 2 * descriptors // HOOK_DESCRIPTORS)), os.geteuid(), self._make_room, user_of
        )
        most = max(4, min(MOST // 2, descriptors // HOOK_DESCRIPTORS))
        self._hooks = Vacancies(most, os.geteuid(), lambda: None, user_of)
        self._numbers = itertools.count(1)
        self._closed = False

    def apply(self, settings: Settings) -> None:
        """Use these settings for the built-in hooks from now on."""
        self.settings = settings_for(settings)

    async def call(self, uid: int, call: str, args: Mapping[str, object], timeout: float) -> Any:
        """Call the shared helper of `uid`; `timeout` (seconds) covers everything.

        If the helper is killed because another call is late, it is replaced and called again within the same deadline,
        so calls must be repeatable. Raises OwnerCallFailed with `late`, `lost`, `not_started`, `not_permitted`,
        `too_long`, `garbled`, `closed`, or the helper's own reason.
        """
        helper: _Helper | None = None
        try:
            async with asyncio.timeout(timeout):
                while True:
                    helper = await self._get(uid)
                    try:
                        return await self._ask(helper, call, args)
                    except OwnerCallFailed as error:
                        if error.reason != "ended":
                            raise
        except TimeoutError:
            if helper is not None and not helper.gone:
                helper.lose("ended", "the helper was late for another call")
                self._retire(uid, helper, patience=0.0)
            raise OwnerCallFailed("late", _no_answer(call, args, uid, timeout)) from None

    async def call_in_fresh_helper(
        self, uid: int, call: str, args: Mapping[str, object], timeout: float, option: str = "--alone"
    ) -> Any:
        """Call a helper that is started for this call only and always ended afterwards. Raises the errors of `call`.

        `option`: `--command` to run a program of the operator or the owner, which is not confined.
        """
        helper: _Helper | None = None
        try:
            async with asyncio.timeout(timeout):
                helper = await self._start(uid, option, lifetime=timeout)
                self._alone.add(helper)
                return await self._ask(helper, call, args)
        except TimeoutError:
            raise OwnerCallFailed("late", _no_answer(call, args, uid, timeout)) from None
        finally:
            if helper is not None:
                self._alone.discard(helper)
                await self._let_go(helper)
                self._retire(uid, helper, patience=0.0)

    async def run_hook(self, spec: HookSpec, context: HookContext) -> HookResult:
        """One attempt at one hook, as the owner, in a separate helper. A failing helper gives `failed` or `timeout`.

        The number of concurrent hooks is limited by file descriptors and shared among users like the places for
        helpers. Waiting for a place does not count towards the hook's timeout.
        """
        seconds = spec.timeout.total_seconds()
        args: dict[str, object] = {"context": hooks.context_json(context), "timeout_seconds": seconds}
        if spec.command is not None:
            name, args = "command_hook", args | {"command": list(spec.command)}
        else:
            name, args = "hook", args | {"run": spec.run, "settings": hooks.settings_json(self.settings)}
        async with self._hooks.place(context.owner_uid):
            return _with_place(spec, context, await self._result(context.owner_uid, name, args, seconds))

    async def type_keys(self, uid: int, pid: int, start_ticks: int, keys: Sequence[str], *, clear: bool = False) -> str:
        """Type into the pane of that process of `uid`; returns a description of what was done.

        Uses a separate helper, as keys must never be typed twice. `clear` and further errors: see
        `owner.terminals.panes`; also raises the errors of `call`.
        """
        args = {"pid": pid, "start_ticks": start_ticks, "keys": list(keys), "clear": clear}
        done = await self.call_in_fresh_helper(uid, "type_keys", args, TYPING)
        return f"typed into {done['terminal']} pane {done['pane']}"

    async def run_notice(
        self, command: Sequence[str], name: str, event: str, seconds: float, uid: int | None = None
    ) -> HookResult:
        """Run the command of `[notify]` for one event (`event` is its JSON) as our own uid, in a separate helper.

        With `uid`, run it as that user: a nudge belongs to the owner.

        It is never a child of the service itself, whose sandbox would deny the command network and disk.
        """
        args = {"command": list(command), "name": name, "event": event, "timeout_seconds": seconds}
        return await self._result(os.geteuid() if uid is None else uid, "notify_command", args, seconds)

    async def _result(self, uid: int, call: str, args: Mapping[str, object], seconds: float) -> HookResult:
        option = "--command" if call in ("command_hook", "notify_command") else "--alone"
        try:
            return hooks.result_of(await self.call_in_fresh_helper(uid, call, args, seconds + BACKSTOP, option))
        except OwnerCallFailed as error:
            late = error.reason == "late"
            return HookResult(HookOutcome.TIMEOUT if late else HookOutcome.FAILED, str(error), {"reason": error.reason})
        except ValueError as error:
            return HookResult(
                HookOutcome.FAILED, f"the helper's answer is not a result: {error}", {"reason": "garbled"}
            )

    async def close(self) -> None:
        """End all helpers. Waiting calls fail with `closed`."""
        self._closed = True
        for uid, helper in list(self._shared.items()):
            helper.lose("closed", "the daemon is stopping")
            self._retire(uid, helper)
        alone = list(self._alone)
        for helper in alone:
            helper.lose("closed", "the daemon is stopping")
        await asyncio.gather(*(self._let_go(helper) for helper in alone))
        ending = [task for tasks in self._ending.values() for task in tasks]
        if ending:
            await asyncio.wait(ending, timeout=2.0)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _get(self, uid: int) -> _Helper:
        async with self._starting.setdefault(uid, asyncio.Lock()):
            helper = self._shared.get(uid)
            if helper is None or helper.gone:
                helper = self._shared[uid] = await self._start(uid)
            return helper

    async def _person(self, uid: int) -> tuple[Account, list[int]]:
        """The account of a uid, with one NSS lookup per uid at a time; a caller's deadline ends only that caller's
        wait.
        """
        if uid not in self._persons:
            self._persons[uid] = nss.ask(partial(nss.person, uid))
        asked = self._persons[uid]
        await asyncio.wait([asked])
        self._persons.pop(uid, None)
        return asked.result()

    async def _start(self, uid: int, *options: str, lifetime: float | None = None) -> _Helper:
        if self._closed:
            raise OwnerCallFailed("closed", "the daemon is stopping")
        if len(self._ending.get(uid, ())) >= STUCK_LIMIT:
            raise OwnerCallFailed("not_started", f"{STUCK_LIMIT} killed helpers of uid {uid} do not exit")
        person, groups = await self._person(uid)
        await self._vacancies.take(uid)
        try:
            return await self._started(person, groups, options, lifetime)
        except BaseException:
            self._vacancies.give_back(uid)
            raise

    async def _started(
        self, person: Account, groups: Sequence[int], options: Sequence[str], lifetime: float | None
    ) -> _Helper:
        """Start a helper. Root's daemon starts it as root, and the helper changes its own uid: see
        `confinement.become`.
        """
        uid, unit = person.uid, None
        argv = [*self._argv, *options]
        if uid != os.geteuid():
            argv.append(f"--become={uid}:{person.gid}:{','.join(map(str, groups))}")
        if self._transient:
            unit = transient_units.name_for(uid)
            argv = transient_units.start_argv(unit, person, argv, lifetime)
        pipe = asyncio.subprocess.PIPE
        try:
            process = await children.start(
                *argv,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                limit=LINE_LIMIT,
                cwd="/",
                env=dict(person.environment),
                start_new_session=True,
                umask=0o077,
            )
        except OSError as error:
            raise OwnerCallFailed("not_started", f"no helper for uid {uid}: {error}") from error
        helper = _Helper(process, unit)
        helper.tasks += [asyncio.create_task(self._listen(uid, helper)), asyncio.create_task(_keep_words(helper))]
        return helper

    def _make_room(self) -> None:
        """End the shared helper that has been idle longest, if any."""
        idle = [one for one in self._shared.items() if one[1].idle is not None]
        if idle:
            self._end_idle(*min(idle, key=lambda one: one[1].since))

    def _end_idle(self, uid: int, helper: _Helper) -> None:
        helper.lose("ended", "it was idle")
        self._retire(uid, helper)

    async def _ask(self, helper: _Helper, call: str, args: Mapping[str, object]) -> Any:
        number = next(self._numbers)
        request = json.dumps({"id": number, "call": call, "args": dict(args)}).encode() + b"\n"
        if len(request) > LINE_LIMIT:
            words = f"{call}: a question of {len(request)} bytes; a helper takes {LINE_LIMIT}"
            raise OwnerCallFailed("too_long", words)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        helper.waiting[number] = future
        if helper.idle is not None:
            helper.idle.cancel()
            helper.idle = None
        stdin = helper.process.stdin
        assert stdin is not None
        try:
            stdin.write(request)
            with contextlib.suppress(ConnectionError):  # it exited: the listener reports that with its last output
                await stdin.drain()
            reply = await future
        finally:
            helper.waiting.pop(number, None)
            self._rest(helper)
        self._note_lacking(reply.get("lacking"))
        if reply.get("ok") is True:
            return reply.get("result")
        raise OwnerCallFailed(str(reply.get("error"))[:64], hooks.printable(str(reply.get("message")))[:2000])

    def _rest(self, helper: _Helper) -> None:
        """Start the idle timer of a shared helper that no caller waits for."""
        uid = next((one for one, shared in self._shared.items() if shared is helper), None)
        if uid is None or helper.waiting or helper.gone:
            return
        loop = asyncio.get_running_loop()
        helper.since = loop.time()
        helper.idle = loop.call_later(IDLE, self._end_idle, uid, helper)
        if self._vacancies.wanted:
            self._make_room()

    def _note_lacking(self, lacking: object) -> None:
        """Report the missing confinement that a helper's first answer lists. Any user may own the helper: limit the
        size.
        """
        for kind, why in lacking.items() if isinstance(lacking, dict) else ():
            if kind in CONFINEMENTS and kind not in self._lacking and self._log is not None:
                self._lacking.add(kind)
                self._log.event("helper.unconfined", kind=kind, why=hooks.printable(str(why))[:200])

    async def _listen(self, uid: int, helper: _Helper) -> None:
        """Pass answers to the waiting calls until the helper closes its output or sends an invalid answer."""
        stdout = helper.process.stdout
        assert stdout is not None
        try:
            while line := await stdout.readline():
                reply = json.loads(line)
                future = helper.waiting.get(reply["id"])
                if future is not None and not future.done():
                    future.set_result(reply)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            helper.lose("garbled", f"the helper of uid {uid} violates the protocol: {error}")
        else:
            words = helper.last_words.decode("utf-8", "replace").strip()[-500:]
            helper.lose("lost", f"the helper of uid {uid} ended" + (f": {words}" if words else ""))
        if self._shared.get(uid) is helper:
            self._retire(uid, helper)

    async def _let_go(self, helper: _Helper) -> None:
        """Close its stdin, which makes a single-call helper kill its hook's tree, and give it time for that.

        KILL alone would leave that tree running unwatched.
        """
        assert helper.process.stdin is not None
        helper.process.stdin.close()
        await asyncio.wait([asyncio.ensure_future(helper.process.wait())], timeout=LET_GO)

    def _retire(self, uid: int, helper: _Helper, patience: float = 1.0) -> None:
        """Take a helper out of use and wait for its exit in the background: in D state even KILL may take forever."""
        if self._shared.get(uid) is helper:
            del self._shared[uid]
        if helper.retired:
            return
        helper.retired = True
        if helper.idle is not None:
            helper.idle.cancel()
            helper.idle = None
        task = asyncio.create_task(self._bury(uid, helper, patience))
        self._ending.setdefault(uid, set()).add(task)
        task.add_done_callback(partial(self._ended, uid))

    def _ended(self, uid: int, task: asyncio.Task[None]) -> None:
        """Forget a uid without helpers: a user may have 65,536 uids (subuid(5))."""
        self._ending[uid].discard(task)
        if not self._ending[uid]:
            del self._ending[uid]

    async def _bury(self, uid: int, helper: _Helper, patience: float) -> None:
        """Free its place once it has exited, or some time after KILL: one in D state must not delay others."""
        burial = asyncio.ensure_future(_buried(helper, patience))
        try:
            await asyncio.wait([burial], timeout=patience + 2 * UNIT_GONE)
        except asyncio.CancelledError:
            burial.cancel()
            raise
        finally:
            self._vacancies.give_back(uid)
        await burial


def _no_answer(call: str, args: Mapping[str, object], uid: int, seconds: float) -> str:
    """The error for a late helper, naming the call and the path, where a disk, mount or server may hang."""
    path = args.get("path")
    about = f" about {hooks.printable(path)}" if isinstance(path, str) else ""
    return f"no answer to {call}{about} for uid {uid} in {seconds:g} s"


def _with_place(spec: HookSpec, context: HookContext, result: HookResult) -> HookResult:
    """Add the path that a hook was working in to its timeout message."""
    built_in = hooks.BUILT_IN.get(spec.run or "")
    own = None if built_in is None else built_in.directory(context)
    place = own or (context.worktree if spec.command is not None else None)
    if result.outcome is not HookOutcome.TIMEOUT or place is None or place in result.message:
        return result
    shown = hooks.printable(place)
    words = f"{result.message}; it was at work in {shown}: does that hang? timeout 5 ls {shlex.quote(shown)}"
    return HookResult(result.outcome, words, {**result.details, "place": place})


async def _keep_words(helper: _Helper) -> None:
    stderr = helper.process.stderr
    assert stderr is not None
    while data := await stderr.read(4096):
        helper.last_words += data
        del helper.last_words[:-STDERR_KEPT]


async def _buried(helper: _Helper, patience: float) -> None:
    """Wait until the process is reaped, and close its pipes, as a child of it may hold the other ends.

    A process that is already exiting gets `patience` seconds: a signal would race asyncio's own wait for it.
    """
    assert helper.process.stdin is not None
    helper.process.stdin.close()
    ended = asyncio.ensure_future(helper.process.wait())
    try:
        if not (await asyncio.wait([ended], timeout=patience))[0]:
            if helper.unit is not None:  # killing only `systemd-run` would leave the unit running
                await transient_units.end(helper.unit)
                await asyncio.wait([ended], timeout=UNIT_GONE)
            if helper.process.returncode is None:
                helper.process.kill()
        # Since 3.12 wait() also waits for the pipes, which another process may hold: poll the return code instead.
        while helper.process.returncode is None:
            await asyncio.wait([ended], timeout=1.0)
    finally:
        ended.cancel()
        for task in helper.tasks:
            task.cancel()
        await asyncio.gather(*helper.tasks, return_exceptions=True)
        # A process left behind by the helper may hold the other ends open: the loop would keep ours forever.
        helper.process.close()
