"""`status`: one verdict on the watchdog itself, what needs attention and what to do about it, then the figures."""

import argparse
import os
from datetime import UTC, datetime

from watchdog.cli.diagnosis import Finding, attention
from watchdog.cli.output import ago, clean, clock, entries, entry, local, refused, say, say_json, size
from watchdog.cli.seen import Seen, has_systemd, sweep_age
from watchdog.cli.verb import Json, Verbs, add_verb, ask

_STATUS = """\
Whether the daemon does its work: one line with the verdict, then what needs attention and what to do about it, then
figures: the last sweep, the number of agents per verdict, holds, open kill requests. `doctor` also checks the
installation and the machine.

Exit status: 0 fine, 1 something needs attention, 69 no daemon answers: nothing is watched.
"""
_SECTIONS = (  # of the answer; `attention` reports what is wrong in them
    *("registry_problem", "config_problems", "config_waiting", "disk_reserve", "unreadable", "limited", "waits_for"),
    *("troubles", "unkillable", "hostname"),
)


def add_verbs(verbs: Verbs) -> None:
    """Add the parser of `status`."""
    add_verb(verbs, "status", "whether the watchdog itself is well", _STATUS).set_defaults(call=status)


def status(arguments: argparse.Namespace) -> int:
    """Print the daemon's state; the exit status is the verdict."""
    code, answer = ask(arguments, "GET", "/v1/status")
    if code >= 300:
        return refused(code, answer)
    age, systemd = sweep_age(answer, datetime.now(UTC)), has_systemd(answer.get("uid"))
    found = attention(Seen(uid=os.geteuid(), status=answer, sweep_age=age, systemd=systemd))
    if arguments.json:
        keys = ("severity", "what", "meaning", "todo")
        say_json({**answer, "attention": [{key: getattr(one, key) for key in keys} for one in found]})
    else:
        say(_verdict(answer, found))
        for one in found:
            if one is not found[0]:  # already in the verdict
                say(f"  {clean(one.what)}")
            say(f"    {clean(one.meaning)}")
            say(f"    do: {clean(one.todo)}")
        _figures(answer)
    return 1 if found else 0


def _verdict(answer: Json, found: list[Finding]) -> str:
    """The first line, for a person who has been paged."""
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        return f"ATTENTION: {clean(found[0].what)}{more}"
    left, age = entries(answer.get("elsewhere")), sweep_age(answer, datetime.now(UTC))
    total = answer.get("agents")
    count = total - len(left) if isinstance(total, int) else total
    holders = ", ".join(dict.fromkeys(clean(one.get("holder")) for one in left))
    more = f", {len(left)} by another daemon ({holders})" if left else ""
    last = "no sweep has ended yet" if age is None else f"the last sweep ended {ago(max(0.0, age))} ago"
    only = "; it only observes: no agent is killed" if answer.get("mode") == "observe" else ""
    doubts = answer.get("doubts")
    held = f"; kills for silence are held back: {local(doubts[0])}" if isinstance(doubts, list) and doubts else ""
    return f"fine: {clean(count)} agent{'' if count == 1 else 's'} watched{more}, {last}{only}{held}"


def _figures(answer: Json) -> None:
    plain = {key: value for key, value in answer.items() if not isinstance(value, dict | list) and key not in _SECTIONS}
    if answer.get("hostname"):
        plain["host"] = f"{answer['hostname']} ({answer.get('host')})"
    width = max((len(key) for key in plain), default=0)
    for key, value in plain.items():
        say(f"{clean(key).ljust(width)}  {local(value)}")
    for uid, used in entry(answer.get("users_over_share")).items():
        say(f"{'share'.ljust(width)}  uid {clean(uid)} exceeds its share of the registry: {size(used)}")
    log = entry(answer.get("log"))
    trouble = f", {clean(log.get('error'))}" if log.get("error") else ""
    say(f"{'log'.ljust(width)}  {clean(log.get('target'))}, lost lines: {clean(log.get('lost'))}{trouble}")
    for key in ("verdicts", "statuses"):
        tally = ", ".join(f"{clean(count)} {clean(name)}" for name, count in entry(answer.get(key)).items())
        say(f"{key.ljust(width)}  {tally or 'none'}")
    for one in entries(answer.get("elsewhere")):
        say(f"{'elsewhere'.ljust(width)}  {clean(one.get('name'))}: {clean(one.get('holder'))}; nothing is done here")
    holds = entries(answer.get("holds"))
    doubts = answer.get("doubts")
    own = doubts if isinstance(doubts, list) else []
    say(f"{'holds'.ljust(width)}  {'none' if not holds and not own else ''}".rstrip())
    for why in own:
        limit = answer.get("hold_max_seconds")
        most = f", each agent's for {ago(limit)} at most" if limit else ""
        say(f"  the daemon's own: {clean(why)}; kills for silence are held back{most}")
    for hold in holds:
        target = (
            f"agent {clean(hold.get('name')) or clean(hold.get('agent_id'))[:8]}"
            if hold.get("agent_id")
            else "all agents"
        )
        until = f", until {clock(hold.get('until'))}" if hold.get("until") else ""
        say(f"  {target}: {clean(hold.get('reason') or 'held')} (by uid {clean(hold.get('by_uid'))}{until})")
