"""A registration as a line of JSON: decoded to the same value, or refused."""

from dataclasses import fields

import pytest

from tests.registry.samples import FULL, NOW
from watchdog.core.agent import Registration, Status
from watchdog.registry.column_decoders import BadRow
from watchdog.registry.registration_codec import from_line, from_registration, to_line

SIMPLE = Registration("b" * 32, "beta", 1000, "h1", "b1", created_at=NOW)


@pytest.mark.parametrize("registration", [FULL, SIMPLE], ids=["all is said", "little is said"])
def test_a_registration_comes_back_as_it_was(registration: Registration) -> None:
    """Every field, including those that a later version adds."""
    row = from_line(to_line(from_registration(registration, Status.RUNNING, NOW, "/run/x")))
    for field in fields(Registration):
        assert getattr(row.registration, field.name) == getattr(registration, field.name), field.name
    assert (row.status, row.notify_socket, row.beats) == (Status.RUNNING, "/run/x", 0)


@pytest.mark.parametrize("line", ["", "[]", "{}", "null", '{"agent_id": 7}', "[" * 100_000, "\0"])
def test_what_is_no_registration_is_told_as_such(line: str) -> None:
    """As in a file of our directory that was edited by hand."""
    with pytest.raises(BadRow):
        from_line(line)
