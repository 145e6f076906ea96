"""`Descent` says what walks up a table say, in any table: rings, orphans, parents younger than their children."""

from hypothesis import given
from hypothesis import strategies as st

from tests.processes.test_tree_pure import row, table
from watchdog.processes.descent import Descent

PIDS = range(100, 112)
rows = st.tuples(
    *(st.builds(row, st.just(pid), st.sampled_from([0, 1, 2, *PIDS]), start=st.integers(0, 3)) for pid in PIDS)
)


@given(rows, st.sets(st.sampled_from(PIDS)))
def test_it_says_what_walking_up_says(found: tuple[object, ...], wanted: set[int]) -> None:
    seen = table(*found)  # type: ignore[arg-type] # rows
    descent = Descent(seen)
    in_rings = seen.rows.keys() - set(descent)
    assert all(_rings(seen.ancestry(pid), seen.parent, pid) for pid in in_rings)
    for pid in seen.rows.keys() - in_rings:
        above = seen.ancestry(pid)
        assert list(descent.above(pid)) == above
        assert descent.depth(pid) == len(above)
        assert [one for one in seen.rows if descent.is_below(pid, one)] == [one for one in seen.rows if one in above]
        assert descent.nearest(wanted).get(pid) == next((one for one in above if one in wanted), None)


def _rings(above: list[int], parent: object, pid: int) -> bool:
    """Whether a walk up from there never comes to an end."""
    assert callable(parent)
    return parent(above[-1] if above else pid) is not None


def test_who_is_not_in_the_table_is_below_nobody() -> None:
    descent = Descent(table(row(100, 1)))
    assert not descent.is_below(7, 1)
    assert not descent.is_below(100, 7)
    assert descent.depth(7) == 0
    assert list(descent.above(7)) == []
    assert descent.parent(7) is None
