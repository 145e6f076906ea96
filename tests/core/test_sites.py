"""What is a stranger's at a place of a dead agent's, and what is not known to be."""

import pytest

from watchdog.core.sites import Known, Site, known_json, known_of, site_json, site_of, stranger

TREE = Site((10, 1000), (20, 1000), "refs/heads/wt", since=100.0)


@pytest.mark.parametrize(
    ("known", "now", "words"),
    [
        (Known(TREE), TREE, None),
        (Known(TREE), Site((11, 1000), (20, 1000), "refs/heads/wt"), "another directory"),
        (Known(TREE), Site((10, 2000), (20, 1000), "refs/heads/wt"), "another directory"),  # an inode comes again
        (Known(TREE), Site((10, None), (20, None), "refs/heads/wt"), None),  # a file system that does not say when
        (Known(TREE), Site((10, 1000), (20, 2000), "refs/heads/wt"), "another entry"),
        (Known(TREE), Site((10, 1000), None), "another entry"),
        (Known(TREE), Site((10, 1000), (20, 1000), "refs/heads/new"), None),  # agents change their branch
        (Known(TREE, watched=False), Site((10, 1000), (20, 1000), "refs/heads/new"), "on new, and was on wt"),
        (Known(TREE, watched=False), Site((10, 1000), (20, 1000), None), "on no branch"),
        (Known(None, until=100.0), TREE, None),
        (Known(None, until=99.0), TREE, "made after"),
        (Known(None), TREE, None),
        (Known(TREE, until=1.0), TREE, None),  # it was seen: when it was made says no more
    ],
)
def test_a_stranger_is_told_by_what_lies_there(known: Known, now: Site, words: str | None) -> None:
    """Never by the path; what is not known of either says nothing."""
    why = stranger(known, now)
    assert why is None if words is None else why is not None and words in why


def test_both_come_back_from_json() -> None:
    """As the row and the hook's context hold them."""
    assert site_of(site_json(TREE)) == TREE
    for known in (Known(TREE, 5.0, False), Known(), Known(Site((1, None)))):
        assert known_of(known_json(known)) == known
    assert known_of(None) == Known()


@pytest.mark.parametrize("broken", [{}, {"directory": [1]}, {"directory": ["1", 2]}, {"directory": [1, 2], "entry": 3}])
def test_what_is_no_site_is_refused(broken: dict[str, object]) -> None:
    """A row may have been edited, and a helper may say anything."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        site_of(broken)
