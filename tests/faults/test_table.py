"""Each row of the table is survived."""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from tests.faults.table import Row, Run, all_rows, share
from tests.postgresql import BINARIES, Server, running_server
from tests.tables import SEED


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One PostgreSQL for all rows of a worker: each fault is undone again."""
    if not BINARIES:
        pytest.skip("PostgreSQL is not installed")
    with running_server("-c max_connections=30") as running:
        yield running


@pytest.mark.faults
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.fault, marks=pytest.mark.timeout(row.limit)) for row in share(all_rows())]
)
def test_a_fault_is_survived(
    row: Row, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """It ends as the table says, every time; the facts go with the report to whoever prints the table."""
    for key, value in (("fault", row.fault), ("how", row.how), ("end", row.end), ("runs", str(row.times))):
        record_property(key, value)
    row.skip()
    run = Run(row.times, Random(f"{SEED} {row.fault}"), request.getfixturevalue)
    row.survive(run)
    record_property("figures", "; ".join(run.notes))
