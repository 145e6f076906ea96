"""Which agents a client of the control socket may act on."""

import pytest

from watchdog.core.peer import Peer


@pytest.mark.parametrize(
    ("peer", "owner", "may"),
    [
        (Peer(1000, 1000, 7), 1000, True),
        (Peer(1000, 1000, 7), 1001, False),
        (Peer(1000, 0, 7), 0, False),  # the gid does not matter
        (Peer(0, 0, 7), 1000, False),  # even root needs `admin`
        (Peer(1000, 1000, 7, admin=True), 0, True),
    ],
)
def test_a_user_may_act_on_its_own_agents_and_an_admin_on_all(peer: Peer, owner: int, may: bool) -> None:
    """Whether a client is an admin is decided when its connection is accepted."""
    assert peer.may(owner) is may
    assert peer.by == f"uid {peer.uid}"
