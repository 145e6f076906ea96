"""`kill`, `stop`, `cancel`, `remove`, `purge`, `hold`, `unhold`: the verbs that end an agent, or keep hands off."""

import argparse

from watchdog.cli.output import clean, entries, exit_of, local, ran, refused, say, say_json, warn
from watchdog.cli.verb import Json, Verbs, add_verb, ask, duration, span

_KILL = """\
End agents with their whole process trees, prove it, then clean up after them: TERM (and CONT), the grace period, KILL,
and a look that finds nobody left. Only what was registered is ended. What has ended already is fine (exit status 0).

  agent-watchdog kill alpha                   politely: 10 s grace, or what the policy says
  agent-watchdog kill alpha --force           KILL at once; work in memory is lost
  agent-watchdog kill stalled --dry-run       what would be killed?
  agent-watchdog kill stalled --stall-after 30m
  agent-watchdog kill orphans                 what outlived agents that have ended
  agent-watchdog kill alpha@HOST              an agent of another host that shares the registry

From within an agent's process tree `all`, `tag:X` and `type:X` only show whom they mean (exit status 1) without --go.
Once it is proved dead the cleanup is waited for, 30 s at most, of another user's agent 5 s. Then it says what is left,
with exit status 0, and the cleanup goes on: `why NAME`.

An agent that is held is not killed: `unhold` it first. Child agents are spared unless --children. The work in its
worktree is never thrown away; `why NAME` says afterwards what was kept.

Another host's agent is ended by that host's daemon. While none is connected the order waits for it, and this says so
and ends with 1: `waiting`. Only root and admins order for other hosts.
"""
_STOP = """\
Have agents stop: one that beats over HTTP is asked to end by itself after its present tool call, and has the policy's
stop_pause_seconds for it. Then the program that lists it stops it, where it can (`hcom stop NAME`). Then the policy's
exit_keys are typed into the agent's own pane, and it has 3 s; then TERM, the grace period (5 s for whom keys were
typed) and KILL, as `kill` does. `kill NAME` meanwhile ends the asking. Their outcome is `stopped`; who has ended
already is fine (exit status 0). How its conversation is taken up again is told, where it is known.
"""
_CANCEL = """\
Stop whoever works on a task, as `stop` does; when they have ended the task is `cancelled`, also over a restart of the
daemon. Cancelled already is fine (exit status 0).
"""
_REMOVE = """\
Close the rows of agents whose process is gone. A living agent is refused: `kill` it. Their history is kept.
"""
_PURGE = """\
Move the files of the conversation that an ended agent was in to the trash, so that nobody takes it up again: of Claude
Code projects/*/ID.jsonl and what lies beside it by that name, of Codex rollout-*-ID.jsonl, of Antigravity ID.db and
brain/ID. Only files with that very id; a living agent, and a conversation that a process is in, are refused. The trash
lies in the program's own directory (.agent-watchdog-trash-UID) and is emptied by nobody but you.

  agent-watchdog purge alpha           what would go (exit status 1)
  agent-watchdog purge alpha --yes
"""
_HOLD = """\
Do nothing to these agents, and say why: neither the daemon nor `kill` ends them until `unhold`, or until --for is
over. Without TARGET (root and admins): the daemon kills no agent by itself; `kill NAME` still works.
"""
_UNHOLD = """\
Lift the hold on these agents; without TARGET, the hold on all. Their silence counts on from where it was.
"""
_TARGETS = "name, id, pid, tag:X, task:X, type:X, stalled, orphans or all; each with @HOST for another host's"
_WAIT_SECONDS = 900.0
_WAITS = "still at it; `agent-watchdog why NAME` shows how far it has come, and Ctrl-C ends only this wait"


def add_verbs(verbs: Verbs) -> None:
    """Add the seven parsers."""
    parser = _act(verbs, "kill", "end agents with their whole process trees", _KILL, kill)
    parser.add_argument("--force", action="store_true", help="KILL at once, without TERM and grace")
    parser.add_argument(
        "--grace", type=duration, metavar="D", help="time between TERM and KILL (default: the policy's)"
    )
    parser.add_argument(
        "--stall-after", type=span, metavar="D", help="with `stalled`: silent for that long, and not waiting"
    )
    parser.add_argument("--children", action="store_true", help="their child agents too, after them")
    _go(parser)
    parser.add_argument("--no-cleanup", action="store_true", help="leave worktree, temp dir and the rest as they are")
    parser.add_argument("--dry-run", action="store_true", help="say what would be killed, and do nothing")
    parser = _act(verbs, "stop", "ask agents to stop", _STOP, stop)
    parser.add_argument("--children", action="store_true", help="their child agents too, after them")
    _go(parser)
    parser.add_argument("--dry-run", action="store_true", help="say who would be stopped, and do nothing")
    parser = _act(verbs, "cancel", "stop who works on a task, and cancel it", _CANCEL, cancel, targets="TASK")
    parser.add_argument("--children", action="store_true", help="their child agents too, after them")
    parser.add_argument("--dry-run", action="store_true", help="say who would be stopped, and do nothing")
    parser = _act(verbs, "remove", "close the rows of agents whose process is gone", _REMOVE, remove)
    parser.add_argument("--with-messages", action="store_true", help="what foreign registries keep for them, too")
    parser.add_argument("--dry-run", action="store_true", help="say which would be closed, and do nothing")
    parser = add_verb(verbs, "purge", "move an ended agent's conversation to the trash", _PURGE)
    parser.add_argument("agent", metavar="AGENT", help="name or id of one that has ended")
    parser.add_argument("--yes", action="store_true", help="do it; without it this says what would go")
    parser.set_defaults(call=purge)
    parser = _act(verbs, "hold", "do nothing to agents until told otherwise", _HOLD, hold, many="*")
    parser.add_argument("--for", dest="span", type=span, metavar="D", help="for that long only, like 2h")
    _act(verbs, "unhold", "lift holds", _UNHOLD, unhold, many="*", reason=False)


def _go(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--go", action="store_true", help="from within an agent: do it also for all, tag:X, type:X")


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
    return _end(arguments, "/v1/stop", _polite(arguments))


def cancel(arguments: argparse.Namespace) -> int:
    """POST /cancel."""
    return _end(arguments, "/v1/cancel", _polite(arguments))


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


def _end(arguments: argparse.Namespace, path: str, body: Json, timeout: float = _WAIT_SECONDS) -> int:
    """Ask, print each target's result, and give the exit status that sums them up."""
    status, answer = ask(arguments, "POST", path, body, timeout=timeout, waits=_WAITS)
    if "success" not in answer:  # the request itself was refused
        if arguments.json:
            say_json({"success": False, **answer})
        return refused(status, answer)
    results = entries(answer.get("results")) if "results" in answer else [answer]
    if arguments.json:
        say_json(answer)
        return exit_of(results)
    if not results:
        say("nothing to do: no agent fits")
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
    if not result.get("success"):
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
        left_open = "was not made for the agent" in str(hook.get("message"))  # the shell that it was typed in
        if (hook.get("outcome") != "nothing" and not left_open) or hook.get("needs"):  # `why` has these
            say(f"  {ran(hook)}")
