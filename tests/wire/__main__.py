"""`python -m tests.wire`: record anew, and print what has changed. With --former: the former registry, too."""

import sys

from tests.wire import record


def main(words: list[str]) -> int:
    """0, whether something has changed or not; the difference is for whoever reads it, and git shows it again."""
    if set(words) - {"--former"}:
        print(__doc__)
        return 64
    if words:
        record.record_former()
    for part in record.PARTS:
        found = part()
        for line in record.changes(found):
            print(line)
        for name, value in found.items():
            record.save(name, value)
    return 0


sys.exit(main(sys.argv[1:]))
