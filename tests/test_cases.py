"""tests/CASES.md names tests; each of these exists."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
CASES = [line for line in (TESTS / "CASES.md").read_text().splitlines() if line.startswith("| ")][2:]


def test_each_case_has_tests_that_exist() -> None:
    missing = []
    for row in CASES:
        names = re.findall(r"`([\w/]+\.py)::(\w+)[^`]*`", row)
        assert names, f"CASES.md: {row.split('|')[1].strip()} names no test"
        for file, test in names:
            path = TESTS / file
            if not path.is_file() or f"def {test}(" not in path.read_text():
                missing.append(f"{file}::{test}")
    assert missing == [], "tests that CASES.md names"
