"""What a `run` has left of its agent's end: read as its uid, bounded, and nothing else is."""

import json
import os
from pathlib import Path

import pytest

from watchdog.errors import PathRefused
from watchdog.owner import run_reports
from watchdog.owner.run_reports import end_report, end_report_done, end_reports

ID = "a" * 32


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "reports"
    directory.mkdir(mode=0o700)
    return directory


def test_a_report_is_read_listed_and_removed(place: Path) -> None:
    """One at a time by its path, or all; what has another name is none."""
    told = {"end": {"exit_code": 3}}
    (place / ID).write_text(json.dumps(told))
    (place / f"{ID}.new").write_text("{")

    path = f"{place}/{ID}"
    assert end_report(path) == told
    assert end_reports([str(place), "/nowhere/reports"], []) == {"reports": {path: told}, "problems": {}}
    assert end_reports([str(place)], [path]) == {"reports": {}, "problems": {}}
    assert end_report_done(path)
    assert not end_report_done(path)
    with pytest.raises(PathRefused):
        end_report_done(f"{place}/{ID}.new")


@pytest.mark.parametrize("kind", ["link", "fifo", "long", "text", "list", "deep"])
def test_what_is_no_report_is_said_and_harms_no_other(place: Path, kind: str) -> None:
    """Whoever the directory belongs to may put anything there."""
    bad, good = place / ID, place / ("b" * 32)
    good.write_text("{}")
    match kind:
        case "link":
            bad.symlink_to(good)
        case "fifo":
            os.mkfifo(bad)
        case "long":
            bad.write_text(json.dumps({"x": "y" * run_reports.MOST_BYTES}))
        case "deep":
            bad.write_text("[" * 60000)
        case _:
            bad.write_text("nothing" if kind == "text" else "[]")

    with pytest.raises((PathRefused, OSError)):
        end_report(str(bad))
    found = end_reports([str(place)], [])
    assert list(found["reports"]) == [str(good)]
    assert list(found["problems"]) == [str(bad)]


def test_a_directory_where_others_may_write_is_not_read(place: Path) -> None:
    """Anybody could have put it there."""
    (place / ID).write_text("{}")
    place.chmod(0o777)

    with pytest.raises(PathRefused, match="others may write there"):
        end_report(str(place / ID))
    assert end_reports([str(place)], [])["reports"] == {}


def test_one_answer_has_a_bound_and_the_next_has_the_rest(place: Path) -> None:
    """Each question names what was heard already; of a directory with more than a `run` leaves, that is told."""
    for number in range(300):
        (place / f"{number:032x}").write_text(json.dumps({"x": "y" * 30_000}))

    heard: list[str] = []
    while found := end_reports([str(place)], heard)["reports"]:
        assert len(json.dumps(found)) < 1 << 20
        heard += found
    assert len(heard) == run_reports.MOST_LISTED
    assert "300 reports" in end_reports([str(place)], heard)["problems"][str(place)]


def test_directories_whose_names_begin_alike_are_found_where_they_are_ours(tmp_path: Path) -> None:
    """A `run` whose usual directory in /tmp was taken made another beside it; what else is called so is passed over."""
    for name in ("p-1", "p-2", "q-1"):
        (tmp_path / name / "reports").mkdir(mode=0o700, parents=True)
        (tmp_path / name / "reports" / ID).write_text(json.dumps({"end": {"exit_code": 3}}))
    (tmp_path / "p-3").symlink_to("/nowhere")

    found = end_reports([f"{tmp_path}/p-*/reports"], [])

    assert sorted(found["reports"]) == [f"{tmp_path}/p-1/reports/{ID}", f"{tmp_path}/p-2/reports/{ID}"]
    assert found["problems"] == {}
