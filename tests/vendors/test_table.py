"""Each step of each program and version, and the daemon is right: `make vendors`."""

from collections.abc import Callable, Iterator

import pytest

from tests.vendors.programs import PROGRAMS, Version, versions
from tests.vendors.stage import Wrong, staged
from tests.vendors.steps import SCRIPTS
from tests.vendors.table import Row, all_rows, facts_of

pytestmark = pytest.mark.vendors
THERE = [version for version in versions() if not version.lacks]


def cases() -> Iterator[object]:
    """Every row with every version of its program."""
    for version in THERE:
        for row in all_rows():
            if row.vendor == version.vendor:
                marks = [pytest.mark.timeout(row.limit)]
                if row.gap:
                    marks.append(pytest.mark.xfail(reason=row.gap, raises=Wrong, strict=True))
                name = f"{row.vendor}-{version.number}-{row.step.replace(' ', '_')}"
                yield pytest.param(version, row, id=name, marks=marks)


@pytest.mark.parametrize(("version", "row"), list(cases()))
def test_the_daemon_is_right(version: Version, row: Row, record_property: Callable[[str, object], None]) -> None:
    """No wrong kill, no stall that is missed, and what it says is true."""
    for key, fact in facts_of(row, version).items():
        record_property(key, fact)
    with staged(version, SCRIPTS, row.policies, **row.tables) as stage:
        try:
            record_property("came", row.play(stage))
            record_property("holds", True)
        except Wrong as wrong:
            record_property("came", str(wrong))
            raise
        finally:
            if row.recorded:
                stage.record(row.step)


@pytest.mark.parametrize("version", versions(), ids=lambda version: f"{version.vendor}-{version.number}")
def test_the_version_can_be_had(version: Version, record_property: Callable[[str, object], None]) -> None:
    """One that cannot has its line in the table."""
    if version.lacks:
        facts = {"vendor": version.vendor, "version": version.told, "step": "all", "right": "", "known": ""}
        for key, fact in {**facts, "came": version.lacks}.items():
            record_property(key, fact)
        pytest.skip(f"{PROGRAMS[version.vendor].title} {version.told} is not to be had: {version.lacks}")
