"""CPU time of a tree whose processes come and go between two scans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.usage import Used, since


@pytest.mark.parametrize(
    ("before", "now", "seconds"),
    [
        ({1: Used(1, 0, 5.0)}, {1: Used(1, 0, 6.0)}, 1.0),
        ({1: Used(1, 0, 5.0)}, {1: Used(1, 0, 5.0), 2: Used(2, 1, 3.0)}, 3.0),  # a new process counts from zero
        ({1: Used(1, 0, 5.0, 2.0)}, {1: Used(1, 0, 5.0, 11.0)}, 9.0),  # 36 children, none of which a scan ever saw
        # A child that was seen with 8 s exits with 8.5.
        ({1: Used(1, 0, 0.0), 2: Used(2, 1, 8.0)}, {1: Used(1, 0, 0.0, 8.5)}, 0.5),
        # A shell and its child exit together.
        ({1: Used(1, 0, 0.0), 2: Used(2, 1, 1.0, 4.0), 3: Used(3, 2, 6.0)}, {1: Used(1, 0, 0.0, 11.0)}, 0.0),
        # Its parent did not wait for it (SIGCHLD is ignored), or another process adopted it.
        ({1: Used(1, 0, 0.0), 2: Used(2, 1, 8.0)}, {1: Used(1, 0, 1.0)}, 1.0),
        ({1: Used(1, 0, 0.0), 2: Used(2, 77, 8.0)}, {1: Used(1, 0, 1.0)}, 1.0),
        ({1: Used(1, 2, 1.0), 2: Used(2, 1, 1.0)}, {}, 0.0),  # a cycle of reused pids
    ],
)
def test_cpu_time_of_reaped_children_counts_once(before: dict[int, Used], now: dict[int, Used], seconds: float) -> None:
    """Case Q3: a test runner's children live shorter than a scan takes."""
    assert since(before, now) == pytest.approx(seconds)


@given(
    st.dictionaries(st.integers(1, 9), st.tuples(st.integers(0, 9), st.floats(0, 99), st.floats(0, 99)), max_size=9),
    st.dictionaries(st.integers(1, 9), st.tuples(st.floats(0, 9), st.floats(0, 9)), max_size=9),
)
def test_idle_processes_never_count_as_work(
    before: dict[int, tuple[int, float, float]], more: dict[int, tuple[float, float]]
) -> None:
    """Safety: when a process exits, time from before the scan is never counted again; and the sum is never negative."""
    then = {pid: Used(pid, *fields) for pid, fields in before.items()}
    assert since(then, then) == 0
    now = {
        pid: used._replace(own=used.own + more.get(pid, (0, 0))[0], reaped=used.reaped + more.get(pid, (0, 0))[1])
        for pid, used in then.items()
    }
    assert since(then, now) >= -1e-9
