"""Which user a uid counts for: subordinate uids belong to the user that /etc/subuid gives them to (subuid(5)).

Only the file is read, not ranges from a directory service through NSS (`subid:` in nsswitch.conf): those uids count for
themselves. A uid's rights never depend on this map, only its share of resources.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

UID_MAX = 2**32 - 2  # (uid_t)-1 is not a uid
MOST_RANGES = 10_000
MOST_PROBLEMS = 5  # listed at most; further bad lines say nothing new


class Range(NamedTuple):
    """The `size` uids from `first` on belong to `user`."""

    first: int
    size: int
    user: int


class UserMap:
    """Answers in a few µs, as it is used for each connection."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        """Where ranges overlap, the earlier one wins."""
        self._firsts: list[int] = []
        self._ranges: list[Range] = []
        for one in _disjoint(ranges):
            self._firsts.append(one.first)
            self._ranges.append(one)

    def __len__(self) -> int:
        return len(self._ranges)

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Disjoint, by their first uid."""
        return tuple(self._ranges)

    def user_of(self, uid: int) -> int:
        """The uid of the user that a uid counts for; itself if no range contains it."""
        index = bisect_right(self._firsts, uid) - 1
        if index >= 0:
            first, size, user = self._ranges[index]
            if uid < first + size:
                return user
        return uid


def parse_subuid(text: str, uid_of: Callable[[str], int | None]) -> tuple[UserMap, list[str]]:
    """The map, and what is wrong with the file, one line each. `uid_of` gives the uid of a login name.

    If a name has no account, all its ranges count for the first uid of its first range.
    """
    ranges: list[Range] = []
    problems: list[str] = []
    users: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if len(ranges) >= MOST_RANGES:
            problems.append(f"line {number}: more than {MOST_RANGES} ranges; the rest is not read")
            break
        name, first, count = _fields(line)
        if not name or first is None or count is None:
            problems.append(f"line {number}: is not NAME:FIRST:COUNT with uids up to {UID_MAX}")
            continue
        if count == 0:
            continue
        if name not in users:
            known = int(name) if _number(name) is not None else uid_of(name)
            users[name] = first if known is None else known
        ranges.append(Range(first, count, users[name]))
    if len(problems) > MOST_PROBLEMS:
        problems = [*problems[:MOST_PROBLEMS], f"and {len(problems) - MOST_PROBLEMS} more"]
    return UserMap(ranges), problems


def _fields(line: str) -> tuple[str, int | None, int | None]:
    name, _, rest = line.partition(":")
    first, _, count = rest.partition(":")
    begin, size = _number(first), _number(count)
    if begin is None or size is None or begin + size - 1 > UID_MAX:
        return name, None, None
    return name, begin, size


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _disjoint(ranges: Iterable[Range]) -> list[Range]:
    """The ranges sorted, without the parts of later ones that overlap an earlier one."""
    kept: list[Range] = []
    for one in ranges:
        parts = [one]
        index = bisect_right(kept, one.first, key=lambda other: other.first)
        for other in kept[max(0, index - 1) :]:
            if other.first >= one.first + one.size:
                break
            parts = [piece for part in parts for piece in _without(part, other)]
        for part in parts:
            kept.insert(bisect_right(kept, part.first, key=lambda other: other.first), part)
    return kept


def _without(part: Range, other: Range) -> list[Range]:
    end, other_end = part.first + part.size, other.first + other.size
    before = Range(part.first, min(end, other.first) - part.first, part.user)
    begin = max(part.first, other_end)
    after = Range(begin, end - begin, part.user)
    return [piece for piece in (before, after) if piece.size > 0]
