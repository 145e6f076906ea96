"""The identity of one process, as opposed to a later one with the same pid."""

from dataclasses import replace

import pytest

from watchdog.core.process import Identity, cgroup_names

ONE = Identity("h", "b", 42, 99, 7)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (ONE, True),
        (replace(ONE, pidfd_inode=None), True),  # a field that only one of them knows is ignored
        (replace(ONE, pidfd_inode=8), False),
        (replace(ONE, pid=43), False),
        (replace(ONE, start_ticks=100), False),
        (replace(ONE, boot_id="c"), False),
        (replace(ONE, host="i"), False),
    ],
)
def test_two_identities_are_one_process_where_nothing_known_differs(other: Identity, same: bool) -> None:
    """In both directions."""
    assert ONE.same_process(other) is same
    assert other.same_process(ONE) is same


def test_an_agents_own_cgroup_has_its_id_in_its_name() -> None:
    """A scope of systemd's, or a leaf that `run` made."""
    assert cgroup_names("a1") == ("agent-a1.scope", "agent-a1")
    assert not set(cgroup_names("a1")) & set(cgroup_names("a11"))
