"""Our column of the comparison with hcom and agent-relay, played on every run; `make peers` plays theirs beside it."""

from collections.abc import Iterator

import pytest

from tests.peers import ours


@pytest.fixture(scope="module")
def here() -> Iterator[ours.Ours]:
    """One daemon for all of them: each has agents of its own."""
    with ours.running() as one:
        yield one


@pytest.mark.parametrize("scenario", ours.SCENARIOS.values(), ids=lambda scenario: scenario.__name__)
def test_it_ends_as_the_comparison_says(here: ours.Ours, scenario: ours.Scenario) -> None:
    """Each function asserts what must be so, and says it in words."""
    assert scenario(here)
