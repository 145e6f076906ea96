"""Evidence that an agent works: the freshest sight counts, for as long as it is believed."""

from datetime import timedelta

from watchdog.core.observed_activity import TRUST, ActivityKind, ObservedActivity, Sight

MINUTE = timedelta(minutes=1)


def test_each_kind_says_whose_word_it_is() -> None:
    """A kind without one could not be shown by `why`."""
    assert set(TRUST) == set(ActivityKind)


def test_the_freshest_sight_counts_until_it_is_too_old() -> None:
    """Ages are watched time; one that is as old as what is believed is none."""
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
    """The last look is what is told."""
    sights = ObservedActivity()
    sights.looked(ActivityKind.PANE, "no server")
    sights.looked(ActivityKind.LOG, "permission denied")
    sights.looked(ActivityKind.PANE)
    assert sights.failed == {ActivityKind.LOG: "permission denied"}


def test_a_copys_ages_go_on_by_themselves() -> None:
    """Also that of what its pane asks."""
    sights = ObservedActivity(prompt=Sight("a question"))
    sights.see(ActivityKind.CPU, "used CPU")
    copy = sights.copy()
    copy.watch(MINUTE)
    assert copy.prompt == Sight("a question", MINUTE)
    assert copy.seen == {ActivityKind.CPU: Sight("used CPU", MINUTE)}
    assert sights.prompt == Sight("a question")
    assert sights.seen == {ActivityKind.CPU: Sight("used CPU")}
