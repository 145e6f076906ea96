"""The daemon's side of the owners' helpers: start one a uid, ask it with a deadline, end and replace a late one.

The daemon opens no path of an owner; it asks here. What comes back are the words of that uid: they never decide about
another uid's process or path, and no answer is missing evidence, never proof. A helper that hangs delays no other
owner, because every owner has a process of its own; a hook run has one to itself. Such a process is a transient unit
where systemd runs us as the host's daemon (`units`), else our child. One that is not asked for a while is ended, and
there are only so many (`vacancies`). What a helper may not do is in `owner.confinement`.
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
LINE_LIMIT = 1 << 20  # bytes of one question and of one answer; as in the helper
STUCK_LIMIT = 4  # ended helpers of one uid that do not go away (D state): beyond, that uid gets no new one
TYPING = 10.0  # seconds for all keys that are typed into a pane
LET_GO = 3.0  # seconds a lone helper has to end its tree when its caller no longer waits
BACKSTOP = 10.0  # seconds a lone helper has, after the hook's deadline, to end the tree and answer
UNIT_GONE = 2.0  # seconds that a killed unit takes to be gone; one in D state stays
HOOK_DESCRIPTORS = 16  # of the limit for each hook at once: three pipes, twice while it is started, and a pidfd
STDERR_KEPT = 2000  # bytes of a helper's last words
# Seconds without a call after which a shared helper is ended: three sweeps. A helper has 13 MB; its start takes 0.1 s
# of CPU, and as a transient unit 50 ms more.
IDLE = 30.0
CONFINEMENTS = ("seccomp", "landlock")
MOST = 64  # helpers at once, of all owners; 13 MB each


@dataclass(eq=False, slots=True)
class _Helper:
    """One helper process and the calls that wait for it."""

    process: Child
    unit: str | None = None  # the transient unit that it is, and `process` then only waits for it
    waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    last_words: bytearray = field(default_factory=bytearray)
    gone: bool = False  # no answer will come any more
    retired: bool = False  # its end is being waited for
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    idle: asyncio.TimerHandle | None = None  # runs while no caller waits for an answer
    since: float = 0.0  # when that began, in the loop's seconds

    def lose(self, reason: str, message: str) -> None:
        """No answer will come any more: fail whoever waits."""
        self.gone = True
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(OwnerCallFailed(reason, message))
        self.waiting.clear()


def settings_for(settings: Settings) -> CleanupSettings:
    """What the built-in hooks get of the configuration."""
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

    `argv` starts a helper (tests give their own); `settings` go to the built-in hooks; `transient`: each is a unit;
    `unconfined` is called, once for each, with the confinement that this host lacks and why. `user_of` gives the user
    that a uid counts for: users share the places for helpers, not uids.
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
        # By uid; a lock lives as long as a caller has it or waits for it.
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
        """What the built-in hooks go by from now on."""
        self.settings = settings_for(settings)

    async def call(self, uid: int, call: str, args: Mapping[str, object], timeout: float) -> Any:
        """Ask the shared helper of `uid`, all within `timeout` seconds.

        A helper that dies under another's late call is replaced and asked again within the same deadline, so calls must
        be repeatable. Raises OwnerCallFailed: `late`, `lost`, `not_started`, `not_permitted`, `too_long`, `garbled`,
        `closed`, or the helper's own word.
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
        """Ask a helper that is started for this call and ended after it, whatever happens. Raises as `call` does.

        `option`: `--command` where a program of the operator's or the owner's is run, which is not confined.
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
        """One try of one hook, as the owner, in a helper of its own. A helper that fails is `failed` or `timeout`.

        As many at once as there are descriptors for, shared among users as places for helpers are; of those that wait
        the time does not run.
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
        """Type into the pane of that process of `uid`; what was done, in words. Raises as `call` does, and as
        `owner.terminals.panes` (`clear`, too). In a helper of its own: what is typed must not be typed again.
        """
        args = {"pid": pid, "start_ticks": start_ticks, "keys": list(keys), "clear": clear}
        done = await self.call_in_fresh_helper(uid, "type_keys", args, TYPING)
        return f"typed into {done['terminal']} pane {done['pane']}"

    async def run_notice(
        self, command: Sequence[str], name: str, event: str, seconds: float, uid: int | None = None
    ) -> HookResult:
        """The command of `[notify]` for one event (`event` is its JSON), as our own uid, in a helper of its own.

        Or as `uid`: a nudge is the owner's.

        Never as a child of the service itself, which is closed in: the command could then reach no network or disk.
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
        """End every helper. Calls that still wait fail with `closed`."""
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
        """One question to NSS for each uid at a time; a caller's deadline ends that caller's wait alone."""
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
        """Root's daemon starts each as root, and it becomes its owner itself: see `confinement.become`."""
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
        """End the shared helper that has been idle for the longest time, if any is."""
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
            with contextlib.suppress(ConnectionError):  # it is gone: the listener says so with its last words
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
        """A shared helper that no caller waits for ends after a while."""
        uid = next((one for one, shared in self._shared.items() if shared is helper), None)
        if uid is None or helper.waiting or helper.gone:
            return
        loop = asyncio.get_running_loop()
        helper.since = loop.time()
        helper.idle = loop.call_later(IDLE, self._end_idle, uid, helper)
        if self._vacancies.wanted:
            self._make_room()

    def _note_lacking(self, lacking: object) -> None:
        """What the first answer of a helper says of this host; the helper may belong to any user, so it is bounded."""
        for kind, why in lacking.items() if isinstance(lacking, dict) else ():
            if kind in CONFINEMENTS and kind not in self._lacking and self._log is not None:
                self._lacking.add(kind)
                self._log.event("helper.unconfined", kind=kind, why=hooks.printable(str(why))[:200])

    async def _listen(self, uid: int, helper: _Helper) -> None:
        """Hand answers to whoever waits, until the helper closes its output or says what it must not."""
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
        """Close its stdin, at which a lone helper ends its hook's tree, and give it the time for that.

        A bare KILL would leave that tree running unwatched.
        """
        assert helper.process.stdin is not None
        helper.process.stdin.close()
        await asyncio.wait([asyncio.ensure_future(helper.process.wait())], timeout=LET_GO)

    def _retire(self, uid: int, helper: _Helper, patience: float = 1.0) -> None:
        """Take a helper out of use and wait for its end in the background: in D state even KILL may take for ever."""
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
        """Nothing is kept of a uid that has no helper: a user has 65,536 of them (subuid(5))."""
        self._ending[uid].discard(task)
        if not self._ending[uid]:
            del self._ending[uid]

    async def _bury(self, uid: int, helper: _Helper, patience: float) -> None:
        """Its place is free when it is gone, or when KILL has had its time: one in D state must delay no other."""
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
    """What a late helper was asked, and about which path: there a disk, a mount or a server hangs, perhaps."""
    path = args.get("path")
    about = f" about {hooks.printable(path)}" if isinstance(path, str) else ""
    return f"no answer to {call}{about} for uid {uid} in {seconds:g} s"


def _with_place(spec: HookSpec, context: HookContext, result: HookResult) -> HookResult:
    """A hook that timed out names the path that it was at work in."""
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
    """Wait until the process is reaped, and close its pipes: a child of it may hold their other ends.

    One that is ending by itself gets `patience` seconds: signalling it would race asyncio's own wait for it.
    """
    assert helper.process.stdin is not None
    helper.process.stdin.close()
    ended = asyncio.ensure_future(helper.process.wait())
    try:
        if not (await asyncio.wait([ended], timeout=patience))[0]:
            if helper.unit is not None:  # ending `systemd-run` alone would leave the unit to itself
                await transient_units.end(helper.unit)
                await asyncio.wait([ended], timeout=UNIT_GONE)
            if helper.process.returncode is None:
                helper.process.kill()
        # From 3.12 on wait() also waits for the pipes, which another process may hold: the return code is enough.
        while helper.process.returncode is None:
            await asyncio.wait([ended], timeout=1.0)
    finally:
        ended.cancel()
        for task in helper.tasks:
            task.cancel()
        await asyncio.gather(*helper.tasks, return_exceptions=True)
        # A process that the helper left behind may hold the other ends open: the loop would keep ours for ever.
        helper.process.close()
