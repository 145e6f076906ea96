"""One served control socket a test."""

from collections.abc import Iterator

import pytest

from tests.control.office import Office, make_office


@pytest.fixture
def office() -> Iterator[Office]:
    """The real application with a fake kill worker."""
    yield from make_office()
