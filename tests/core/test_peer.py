"""Whose agents a client of the control socket may act on."""

import pytest

from watchdog.core.peer import Peer


@pytest.mark.parametrize(
    ("peer", "owner", "may"),
    [
        (Peer(1000, 1000, 7), 1000, True),
        (Peer(1000, 1000, 7), 1001, False),
        (Peer(1000, 0, 7), 0, False),  # a group is nobody's
        (Peer(0, 0, 7), 1000, False),  # root is one by `admin` alone
        (Peer(1000, 1000, 7, admin=True), 0, True),
    ],
)
def test_it_acts_on_its_own_agents_and_an_admin_on_everybodys(peer: Peer, owner: int, may: bool) -> None:
    """Who counts as an admin is decided where the connection is taken."""
    assert peer.may(owner) is may
    assert peer.by == f"uid {peer.uid}"
