"""`kill`, `stop`, `cancel`, `remove`, `purge`, `hold`, `unhold`: the verbs that kill an agent, or protect it."""

import argparse

from watchdog.cli.output import clean, entries, exit_of, local, ran, refused, say, say_json, warn
from watchdog.cli.verb import Json, Verbs, add_verb, ask, duration, span

_KILL = """\
Kill agents with their whole process trees, prove that they are dead, then clean up after them: TERM (and CONT), the
grace period, KILL, and a check that no process is left. Only registered agents are killed. One that has ended already
is no error (exit status 0).

  agent-watchdog kill alpha                   politely: 10 s grace, or what the policy says
  agent-watchdog kill alpha --force           KILL at once; work in memory is lost
  agent-watchdog kill stalled --dry-run       what would be killed?
  agent-watchdog kill stalled --stall-after 30m
  agent-watchdog kill orphans                 processes that outlived agents that have ended
  agent-watchdog kill alpha@HOST              an agent of another host that shares the registry

From within an agent's process tree `all`, `tag:X` and `type:X` only show what they would kill (exit status 1) unless
--go is given. Once the agent is proved dead, the command waits for its cleanup, 30 s at most, 5 s for another user's
agent. Then it says what is left, with exit status 0, and the cleanup continues: `why NAME`.

An agent that is held is not killed: `unhold` it first. Child agents are spared unless --children. The work in its
worktree is never thrown away; `why NAME` says afterwards what was kept.

Another host's agent is killed by that host's daemon. While that daemon is not connected the order waits for it; the
command says so and exits with status 1: `waiting`. Only root and admins may act on other hosts.
"""
_STOP = """\
Ask agents to stop. An agent that sends beats over HTTP is asked to exit after its present tool call, and has the
policy's stop_pause_seconds for that. Then the program that lists it stops it, where it can (`hcom stop NAME`). Then the
policy's exit_keys are typed into the agent's own pane, and it has 3 s; then TERM, the grace period (5 s where keys were
typed) and KILL, as `kill` does. `kill NAME` meanwhile cuts the asking short. The outcome is `stopped`; an agent that
has ended already is no error (exit status 0). How to resume its conversation is shown where it is known.
"""
_CANCEL = """\
Stop the agents that work on a task, as `stop` does; when they have ended the task is `cancelled`, even if the daemon is
restarted meanwhile. A task that is cancelled already is no error (exit status 0).
"""
_REMOVE = """\
Close the rows of agents whose process is gone. A living agent is refused: `kill` it. Their history is kept.
"""
_PURGE = """\
Move the files of the conversation that an ended agent was in to the trash, so that it cannot be resumed: of Claude Code
projects/*/ID.jsonl and the directory of that name beside it, of Codex rollout-*-ID.jsonl, of Antigravity ID.db and
brain/ID. Only files with exactly that id; a living agent, and a conversation that a process has open, are refused. The
trash is in the program's own directory (.agent-watchdog-trash-UID); only you empty it.

  agent-watchdog purge alpha           what would be moved (exit status 1)
  agent-watchdog purge alpha --yes
"""
_HOLD = """\
Keep these agents from being killed, and say why: neither the daemon nor `kill` ends them until `unhold`, or until --for
is over. Without TARGET (root and admins): the daemon kills no agent by itself; `kill NAME` still works.
"""
_UNHOLD = """\
Lift the hold on these agents. Without TARGET (root and admins): lift the hold on all agents, and the holds that the
daemon set because it suspects itself or the host (see `status`). Silence goes on counting from where it was.
"""
_UNCLEAN = "cleanup_failed"  # it is dead, and a hook has failed
_TARGETS = "name, id, pid, tag:X, task:X, type:X, stalled, orphans or all; each with @HOST for another host's"
_WAIT_SECONDS = 900.0
_WAITS = "still working; `agent-watchdog why NAME` shows its progress, and Ctrl-C ends only this wait"
_STOP_WAITS = (
    "still working; it gives the agents time to exit (stop_pause_seconds of their policy, then exit keys), then"
    " sends TERM and KILL; `agent-watchdog why NAME` shows its progress, and Ctrl-C ends only this wait"
)


def add_verbs(verbs: Verbs) -> None:
    """Add the seven parsers."""
    parser = _act(verbs, "kill", "kill agents with their whole process trees", _KILL, kill)
    parser.add_argument("--force", action="store_true", help="KILL at once, without TERM and grace period")
    parser.add_argument(
        "--grace", type=duration, metavar="D", help="time between TERM and KILL (default: the policy's)"
    )
    parser.add_argument(
        "--stall-after", type=span, metavar="D", help="with `stalled`: silent for that long, and not waiting"
    )
    parser.add_argument("--children", action="store_true", help="their child agents too, after them")
    _go(parser)
    parser.add_argument("--no-cleanup", action="store_true", help="leave worktree, temp dir and the rest as they are")
    parser.add_argument("--dry-run", action="store_true", help="show what would be killed, and do nothing")
    parser = _act(verbs, "stop", "ask agents to stop", _STOP, stop)
    parser.add_argument("--children", action="store_true", help="their child agents too, after them")
    _go(parser)
    parser.add_argument("--dry-run", action="store_true", help="show which agents would be stopped, and do nothing")
    parser = _act(
        verbs, "cancel", "stop the agents that work on a task, and cancel it", _CANCEL, cancel, targets="TASK"
    )
    parser.add_argument("--children", action="store_true", help="their child agents too, after them")
    parser.add_argument("--dry-run", action="store_true", help="show which agents would be stopped, and do nothing")
    parser = _act(verbs, "remove", "close the rows of agents whose process is gone", _REMOVE, remove)
    parser.add_argument(
        "--with-messages", action="store_true", help="also close their entries in other programs' registries"
    )
    parser.add_argument("--dry-run", action="store_true", help="show which rows would be closed, and do nothing")
    parser = add_verb(verbs, "purge", "move an ended agent's conversation to the trash", _PURGE)
    parser.add_argument("agent", metavar="AGENT", help="name or id of one that has ended")
    parser.add_argument("--yes", action="store_true", help="do it; without --yes, only show what would be moved")
    parser.set_defaults(call=purge)
    parser = _act(verbs, "hold", "keep agents from being killed until `unhold`", _HOLD, hold, many="*")
    parser.add_argument("--for", dest="span", type=span, metavar="D", help="for that long only, like 2h")
    _act(verbs, "unhold", "lift holds", _UNHOLD, unhold, many="*", reason=False)


def _go(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--go", action="store_true", help="needed within an agent for the targets all, tag:X, type:X")


def _act(
    verbs: Verbs,
    name: str,
    help_line: str,
    text: str,
    call: object,
    *,
    targets: str = "TARGET",
    many: str = "+",
    reason: bool = True,
) -> argparse.ArgumentParser:
    parser = add_verb(verbs, name, help_line, text)
    parser.add_argument("targets", metavar=targets, nargs=many, help="a task's id" if targets == "TASK" else _TARGETS)
    if reason:
        parser.add_argument("--reason", default="", metavar="TEXT", help="why; kept in the history")
    parser.set_defaults(call=call)
    return parser


def kill(arguments: argparse.Namespace) -> int:
    """POST /kill."""
    if arguments.stall_after is not None and "stalled" not in arguments.targets:
        warn("--stall-after: goes with the target `stalled` only")
        return 64
    body: Json = {
        "targets": arguments.targets,
        "force": arguments.force,
        "children": arguments.children,
        "cleanup": not arguments.no_cleanup,
        "reason": arguments.reason,
        "dry_run": arguments.dry_run,
        "go": arguments.go,
    }
    if arguments.grace is not None:
        body["grace_seconds"] = arguments.grace
    if arguments.stall_after is not None:
        body["stall_after_seconds"] = arguments.stall_after
    return _end(arguments, "/v1/kill", body, timeout=_WAIT_SECONDS + 2 * (arguments.grace or 0.0))


def stop(arguments: argparse.Namespace) -> int:
    """POST /stop."""
    return _end(arguments, "/v1/stop", _polite(arguments), waits=_STOP_WAITS)


def cancel(arguments: argparse.Namespace) -> int:
    """POST /cancel."""
    return _end(arguments, "/v1/cancel", _polite(arguments), waits=_STOP_WAITS)


def _polite(arguments: argparse.Namespace) -> Json:
    return {
        "targets": arguments.targets,
        "children": arguments.children,
        "reason": arguments.reason,
        "dry_run": arguments.dry_run,
        **({"go": True} if getattr(arguments, "go", False) else {}),
    }


def remove(arguments: argparse.Namespace) -> int:
    """POST /remove."""
    body: Json = {
        "targets": arguments.targets,
        "reason": arguments.reason,
        "with_messages": arguments.with_messages,
        "dry_run": arguments.dry_run,
    }
    return _end(arguments, "/v1/remove", body)


def purge(arguments: argparse.Namespace) -> int:
    """POST /purge; 1 without --yes: nothing was done."""
    status, answer = ask(arguments, "POST", "/v1/purge", {"agent": arguments.agent, "yes": arguments.yes}, timeout=90.0)
    if arguments.json:
        say_json(answer if "success" in answer else {"success": False, **answer})
    if not answer.get("success"):
        return refused(status, answer)
    if not arguments.json:
        paths = answer.get("paths")
        for path in paths if isinstance(paths, list) else []:
            say(clean(path))
        say(clean(answer.get("message")))
    return 0 if answer.get("action") == "purged" or not answer.get("paths") else 1


def hold(arguments: argparse.Namespace) -> int:
    """POST /hold."""
    body: Json = {"targets": arguments.targets, "reason": arguments.reason}
    if arguments.span is not None:
        body["for_seconds"] = arguments.span
    return _end(arguments, "/v1/hold", body)


def unhold(arguments: argparse.Namespace) -> int:
    """POST /unhold."""
    return _end(arguments, "/v1/unhold", {"targets": arguments.targets})


def _end(
    arguments: argparse.Namespace, path: str, body: Json, timeout: float = _WAIT_SECONDS, waits: str = _WAITS
) -> int:
    """Send the request, print each target's result, and return the exit status for all."""
    status, answer = ask(arguments, "POST", path, body, timeout=timeout, waits=waits)
    if "success" not in answer:  # the request itself was refused
        if arguments.json:
            say_json({"success": False, **answer})
        return refused(status, answer)
    results = entries(answer.get("results")) if "results" in answer else [answer]
    if arguments.json:
        say_json(answer)
        return exit_of(results)
    if not results:
        say("nothing to do: no agent matches")
    for result in results:
        _tell(result)
    if body.get("dry_run") and results:
        fit = sum(str(result.get("action")).startswith("would_") for result in results)
        what = {"kill": "killed", "remove": "removed"}.get(arguments.verb, "stopped")
        say(f"{fit} of {len(results)} would be {what}; nothing was done (--dry-run)")
    return exit_of(results)


def _tell(result: Json) -> None:
    identifier = clean(result.get("agent_id"))
    name = clean(result.get("name") or identifier or "all agents")
    short = f" ({identifier[:8]})" if result.get("name") and identifier else ""
    if result.get("error") == _UNCLEAN and result.get("how"):
        warn(f"{name}{short}: {local(result['how'])}; not everything was cleaned up:")
    elif not result.get("success"):
        warn(f"{name}{short}: {local(result.get('message') or result.get('error'))}")
    else:
        say(f"{name}{short}: {local(result.get('how') or result.get('message'))}")
    if result.get("resume"):
        say(f"  to resume: {clean(result.get('resume'))}")
    for process in entries(result.get("processes")):
        say(f"  {clean(process.get('pid')):>8} {clean(process.get('name')):<16} {clean(process.get('how'))}")
    if result.get("pane_retry_command"):
        warn(f"{name}{short}: it is dead, but its pane remains; this command closes it:")
        say(f"  {clean(result['pane_retry_command'])}")
    for hook in entries(result.get("cleanup")):
        left_open = "was not made for the agent" in str(hook.get("message"))  # a person's shell
        if (hook.get("outcome") != "nothing" and not left_open) or hook.get("needs"):  # `why` has these
            say(f"  {ran(hook)}")
