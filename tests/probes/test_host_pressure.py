"""When the host is so busy that silence means little: by given numbers, and by those of this machine."""

import pytest

from watchdog.probes import host_pressure as pressure
from watchdog.probes.host_pressure import LOAD, LOAD_ALONE, MEMORY, judged


@pytest.mark.parametrize(
    ("cpu", "memory", "load", "words"),
    [
        (80.0, 0.0, LOAD, "tasks waited for a CPU in 80% of the time, load 2.0 a core"),
        (100.0, 0.0, LOAD - 0.1, None),  # spinning programs starve no process
        (79.9, 0.0, 50.0, None),
        (None, None, LOAD_ALONE, "load 4.0 a core"),
        (None, None, LOAD_ALONE - 0.1, None),
        (0.0, MEMORY, 0.0, "out of memory: all tasks waited for it in 40% of the time"),
        (0.0, MEMORY - 0.1, 0.0, None),
        (None, MEMORY, 0.0, "out of memory"),
    ],
)
def test_pressure_counts_together_with_load(
    cpu: float | None, memory: float | None, load: float, words: str | None
) -> None:
    """Where the kernel has no PSI, the load alone has to be twice as high."""
    said = judged(cpu, memory, load, 80.0)
    assert said is None if words is None else said is not None and words in said


def test_a_hundred_percent_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the host's numbers."""
    monkeypatch.setattr(pressure, "LOAD", 0.0)
    monkeypatch.setattr(pressure, "LOAD_ALONE", 0.0)
    assert pressure.host_pressure(100.0) is None
    said = pressure.host_pressure(0.0)
    assert said is not None
    assert said.startswith("the host is overloaded: ")


def test_a_missing_line_is_ignored() -> None:
    """So is a missing file."""
    assert pressure._average("cpu", b"nobody") is None
    assert pressure._average("mood", b"some") is None
