"""Names of a place, as other processes and their environments say them."""

import pytest

from watchdog.core.mounts import Mount, mounts_of, names_by, names_place, variable_naming


def test_one_directory_has_the_names_that_mounts_give_it() -> None:
    """The mount that it lies on, a part of it, and none of another device."""
    mounts = [
        Mount(1, "8:1", "/", "/", "ext4"),
        Mount(2, "8:1", "/a/wt", "/mnt", "ext4"),
        Mount(3, "8:2", "/", "/x", "x"),
    ]
    mounts.append(Mount(4, "8:1", "/a/wt/in", "/part", "ext4"))
    assert list(names_by(mounts, "8:1", "/a/wt")) == ["/a/wt", "/mnt", "/part"]


def test_escapes_of_mountinfo_are_undone() -> None:
    """proc(5)."""
    line = rb"36 35 98:0 / /mnt/a\040b rw,noatime shared:1 - ext3 /dev/root rw"
    assert list(mounts_of(line)) == [Mount(36, "98:0", "/", "/mnt/a b", "ext3")]


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("/tmp/t", True),
        ("/tmp/t/", True),
        ("/tmp/t/sub", True),
        ("/usr/bin:/tmp/t/bin", True),
        ("/tmp/../tmp/t", True),
        ("/tmp", False),
        ("/tmp/t2", False),
        ("tmp/t", False),
        ("", False),
    ],
)
def test_a_value_names_a_place_or_something_in_it(value: str, names: bool) -> None:
    """Not what holds it."""
    assert names_place(value, "/tmp/t") is names


def test_what_a_shell_left_behind_is_no_use() -> None:
    """PWD is where it was started."""
    assert variable_naming(b"PWD=/tmp/t\0OLDPWD=/tmp/t\0_=/tmp/t/x\0HOME=/root", ["/tmp/t"]) is None
    assert variable_naming(b"HOME=/root\0TMPDIR=/tmp/t\0", ["/tmp/t"]) == "TMPDIR"
    assert variable_naming(b"\xff=/tmp/t", ["/tmp/t"]) == "\udcff"
