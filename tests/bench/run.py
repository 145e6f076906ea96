"""`make bench`: every figure in one run, paired with the floor and with peers, written to RESULTS.md.

`python -m tests.bench.run NAME...` takes those steps only and writes nothing.
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.bench import acting, hostile, judging, peers, watching
from tests.bench.table import Row, write

Take = Callable[[], list[Row]]
STEPS: dict[str, Sequence[Take]] = {  # what is taken together disturbs one another little
    "silent": (lambda: watching.silent(10, "1"), lambda: watching.silent(100, "2")),
    "silent-1000": (lambda: watching.silent(1000, "8", history=True),),
    "beating": (lambda: watching.beating(10, 10, "3"), lambda: watching.beating(100, 10, "6")),
    "beating-1000": (lambda: watching.beating(1000, 10, "20"),),
    "beating-fast": (lambda: watching.beating(1000, 1, "0 lost", 15),),
    "judging": (judging.judging,),
    "registering": (watching.registering,),
    "flood": (watching.flood,),
    "noticing": (acting.noticing,),
    "beat": (acting.beat,),
    "obey": (lambda: acting.killing(deaf=False),),
    "hostile": (hostile.hostile,),
    "ignore": (lambda: acting.killing(deaf=True),),
}


def main(names: list[str]) -> None:
    """Take the steps of these names, or all and write the table."""
    peers.install()
    rows: list[Row] = []
    for name in names or STEPS:
        with ThreadPoolExecutor(len(STEPS[name])) as threads:
            found = [row for taken in threads.map(_taken, STEPS[name]) for row in taken]
        print(*(" | ".join(row) for row in found), sep="\n", flush=True)
        rows += found
        if not names:
            write(rows)


def _taken(take: Take) -> list[Row]:
    try:
        return take()
    except Exception as error:  # one figure that cannot be taken must not cost the others
        return [(f"failed: {type(error).__name__}: {str(error)[:80]}", "–", "–", "–", "–")]


if __name__ == "__main__":
    main(sys.argv[1:])
