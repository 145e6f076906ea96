"""Which agent owns a session of a shared service, as far as that can be known."""

import pytest

from watchdog.core.sessions import Client, Session, Whose, made_at, shared_words, whose

MADE = 1795973104.413
ID = "01a22856-c31d-7032-a98f-16e5deabc392"  # made at about MADE
API, WEB = "/srv/api", "/srv/web"
ONE = Client("one", MADE - 60, API)
TWO = Client("two", MADE - 50, API)
ELSEWHERE = Client("else", MADE - 60, WEB)
UNWATCHED = Client(None, MADE - 60, API)
REMOTE = Client("remote", MADE - 60, None)
LATER = Client("later", MADE + 60, API)
TAKES_UP = Client("takes", MADE + 60, WEB, frozenset({ID}))

ROWS = [
    ([ONE, ELSEWHERE], True, "one", ()),
    ([ONE, TWO], True, None, ("one", "two")),
    ([ONE, UNWATCHED], True, None, ("one",)),  # the unwatched client may own it
    ([UNWATCHED], True, None, ()),
    ([ONE, REMOTE], True, None, ("one", "remote")),
    ([ONE, LATER], True, "one", ()),  # a fresh session is older than the later client
    ([ONE, LATER], False, None, ("later", "one")),  # a resumed session may belong to any client
    ([ONE, TAKES_UP], False, "takes", ()),
    ([ELSEWHERE], True, None, ()),
    ([], True, None, ()),
    ([ONE, Client("one", MADE - 40, API)], True, "one", ()),  # two processes of one agent
]


@pytest.mark.parametrize(("clients", "fresh", "agent", "perhaps"), ROWS)
def test_a_session_belongs_to_the_only_client_that_can_have_begun_it(
    clients: list[Client], fresh: bool, agent: str | None, perhaps: tuple[str, ...]
) -> None:
    """Otherwise it belongs to none, and the possible owners are listed."""
    found = whose(Session(ID, API, fresh), clients)
    assert (found.agent, found.perhaps) == (agent, perhaps)
    assert found.why


def test_the_order_of_clients_does_not_matter() -> None:
    """The same answer whichever is seen first."""
    assert whose(Session(ID, API), [TWO, ONE]).perhaps == whose(Session(ID, API), [ONE, TWO]).perhaps
    assert whose(Session(ID, API), []) == Whose()


def test_an_id_tells_when_it_was_made_or_nothing() -> None:
    """Only version 7 does; any id that a hook sends must be handled."""
    made = made_at(ID)
    assert made is not None
    assert abs(made - MADE) < 1
    for other in ("", "s", "5e551011-0000-4000-8000-000000000000", "x" * 32, f"{'g' * 12}7{'0' * 19}", "٣" * 32):
        assert made_at(other) is None


def test_what_is_shared_is_said_once() -> None:
    """Each service and each session that may be its own; empty if there is none."""
    assert shared_words([], []) == ""
    words = shared_words(["codex app-server[7]"] * 2, ["codex-api-x"])
    assert words.count("app-server[7]") == words.count("codex-api-x") == 1
