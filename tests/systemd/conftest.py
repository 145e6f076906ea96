"""One booted systemd for each test file that asks for it; such tests carry the mark `systemd`."""

from collections.abc import Iterator

import pytest

from tests.systemd.machine import Machine, booted


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """A throw-away systemd, booted once a file."""
    with booted() as made:
        yield made
