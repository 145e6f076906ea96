"""The process at the other end of the control socket, and what it may do."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as it was when it connected (unix(7), SO_PEERCRED).

    `admin`: acts on all users' agents: root, the uid of a user's own daemon, members of `control.admin_group`.
    """

    uid: int
    gid: int
    pid: int
    admin: bool = False

    @property
    def by(self) -> str:
        """Its name in events."""
        return f"uid {self.uid}"

    def may(self, owner_uid: int) -> bool:
        """Whether it may act on that owner's agents and see their evidence."""
        return self.admin or self.uid == owner_uid
