"""When the directory at a dead agent's path is another one, and when that is not known."""

import pytest

from watchdog.core.sites import KnownSite, Site, known_json, known_of, site_json, site_of, stranger

TREE = Site((10, 1000), (20, 1000), "refs/heads/wt", since=100.0)


@pytest.mark.parametrize(
    ("known", "now", "words"),
    [
        (KnownSite(TREE), TREE, None),
        (KnownSite(TREE), Site((11, 1000), (20, 1000), "refs/heads/wt"), "another directory"),
        (KnownSite(TREE), Site((10, 2000), (20, 1000), "refs/heads/wt"), "another directory"),  # a reused inode
        (KnownSite(TREE), Site((10, None), (20, None), "refs/heads/wt"), None),  # a file system without birth times
        (KnownSite(TREE), Site((10, 1000), (20, 2000), "refs/heads/wt"), "another entry"),
        (KnownSite(TREE), Site((10, 1000), None), "another entry"),
        (KnownSite(TREE), Site((10, 1000), (20, 1000), "refs/heads/new"), None),  # agents change their branch
        (KnownSite(TREE, watched=False), Site((10, 1000), (20, 1000), "refs/heads/new"), "on new, and was on wt"),
        (KnownSite(TREE, watched=False), Site((10, 1000), (20, 1000), None), "on no branch"),
        (KnownSite(None, until=100.0), TREE, None),
        (KnownSite(None, until=99.0), TREE, "made after"),
        (KnownSite(None), TREE, None),
        (KnownSite(TREE, until=1.0), TREE, None),  # it was seen: its age adds nothing
    ],
)
def test_a_stranger_is_recognised_by_the_directory_that_is_there(
    known: KnownSite, now: Site, words: str | None
) -> None:
    """Never by the path; unknown fields are ignored."""
    why = stranger(known, now)
    assert why is None if words is None else why is not None and words in why


def test_both_come_back_from_json() -> None:
    """As stored in the row and the hook's context."""
    assert site_of(site_json(TREE)) == TREE
    for known in (KnownSite(TREE, 5.0, False), KnownSite(), KnownSite(Site((1, None)))):
        assert known_of(known_json(known)) == known
    assert known_of(None) == KnownSite()


@pytest.mark.parametrize("broken", [{}, {"directory": [1]}, {"directory": ["1", 2]}, {"directory": [1, 2], "entry": 3}])
def test_what_is_no_site_is_refused(broken: dict[str, object]) -> None:
    """A row may have been edited, and a helper may send anything."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        site_of(broken)
