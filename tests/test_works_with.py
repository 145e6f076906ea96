"""The table of what works with which system is made from what is there: each row that it calls shown names a test."""

import pytest

from tests.works_with import ALL, FEATURES, NOT_PROMISED, SHOWN, SYSTEMS, TABLE, names_in, table


def test_the_table_is_as_it_is_generated() -> None:
    """`make events` writes it."""
    assert TABLE.read_text(encoding="utf-8") == table(), "run `make events`"


@pytest.mark.parametrize("feature", sorted(SHOWN))
def test_a_row_names_a_test_that_is_there(feature: str) -> None:
    """Of a feature that is one, for systems that have it."""
    systems = FEATURES[feature][2]
    assert feature not in NOT_PROMISED
    for system, test in SHOWN[feature].items():
        assert system == ALL or system in systems, f"{system} has no row for {feature}"
        path, _, name = test.partition("::")
        assert name in names_in(path), test


def test_every_system_has_its_rows() -> None:
    """A feature is some system's, and what is not promised is one."""
    assert {system for _, _, systems in FEATURES.values() for system in systems} == set(SYSTEMS)
    assert NOT_PROMISED.keys() <= FEATURES.keys()
