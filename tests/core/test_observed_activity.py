"""The table of probes, compared with the modules that parse the answers and with the calls of the owner's helper."""

from dataclasses import fields
from datetime import timedelta

import pytest

from watchdog.core.agent import Registration
from watchdog.core.observed_activity import ActivityKind, ObservedActivity, Sight, Trust
from watchdog.owner.helper import CALLS, LOOKS
from watchdog.probes.output_growth import READERS


@pytest.mark.parametrize("kind", ActivityKind)
def test_each_probe_has_a_helper_call_and_a_module_that_parses_the_answer(kind: ActivityKind) -> None:
    """The call of the owner's helper, and the module of its name in probes/."""
    probe, where = kind.probe, f"{kind.name} in ActivityKind, watchdog/core/observed_activity.py"
    assert ActivityKind[kind.name] is kind and kind == kind.value
    if probe.call is not None:
        assert probe.call in {**CALLS, **LOOKS}, f"{where}: add {probe.call!r} to CALLS in watchdog/owner/helper.py"
        for name in ("question", "read"):
            assert callable(getattr(READERS[probe.call], name, None)), f"watchdog/probes/{probe.call}.py: no `{name}`"
    assert (probe.call is None) == (probe.trust is not Trust.OWNER), f"{where}: `trust` is the helper's if it is asked"
    known = {field.name for field in fields(Registration)}
    assert probe.named_by is None or probe.named_by in known, f"{where}: `named_by` is a field of Registration"


def test_the_freshest_sight_is_described_with_its_age() -> None:
    """As text, with its age; a copy ages independently."""
    sights, second = ObservedActivity(), timedelta(seconds=1)
    sights.see(ActivityKind.LOG, "its log grew")
    sights.watch(5 * second)
    sights.see(ActivityKind.IO, "it moves")
    later = sights.copy()
    later.watch(10 * second)
    assert (sights.best(60 * second), later.best(60 * second)) == ("it moves", "it moves 10s ago")
    assert later.best(10 * second) is None


MINUTE = timedelta(minutes=1)


def test_the_freshest_sight_counts_until_it_is_too_old() -> None:
    """Ages are watched time; a sight as old as the limit no longer counts."""
    sights = ObservedActivity()
    assert sights.best(MINUTE) is None
    sights.see(ActivityKind.LOG, "its log grew")
    sights.watch(timedelta(seconds=30))
    sights.see(ActivityKind.CPU, "used CPU")
    assert sights.best(MINUTE) == "used CPU"
    sights.watch(timedelta(seconds=20))
    assert sights.best(MINUTE) == "used CPU 20s ago"
    sights.see(ActivityKind.LOG, "its log grew again")
    assert sights.best(MINUTE) == "its log grew again"
    sights.watch(MINUTE)
    assert sights.best(MINUTE) is None


def test_a_look_that_works_takes_the_former_failure_back() -> None:
    """Only the last check is reported."""
    sights = ObservedActivity()
    sights.looked(ActivityKind.PANE, "no server")
    sights.looked(ActivityKind.LOG, "permission denied")
    sights.looked(ActivityKind.PANE)
    assert sights.failed == {ActivityKind.LOG: "permission denied"}


def test_a_copys_ages_go_on_by_themselves() -> None:
    """Including the age of what its pane asks."""
    sights = ObservedActivity(prompt=Sight("a question"))
    sights.see(ActivityKind.CPU, "used CPU")
    copy = sights.copy()
    copy.watch(MINUTE)
    assert copy.prompt == Sight("a question", MINUTE)
    assert copy.seen == {ActivityKind.CPU: Sight("used CPU", MINUTE)}
    assert sights.prompt == Sight("a question")
    assert sights.seen == {ActivityKind.CPU: Sight("used CPU")}
