"""Names of a directory in other mount namespaces and in environments."""

from dataclasses import replace

import pytest

from watchdog.core.mounts import (
    Mount,
    lies_in,
    made_of,
    mapped_files,
    mounts_of,
    names_by,
    names_place,
    use_by_mounts,
    variable_naming,
)


def test_one_directory_has_the_names_that_mounts_give_it() -> None:
    """Through the mount that it lies on, through a mount of a part, and not through another device's."""
    mounts = [
        Mount(1, "8:1", "/", "/", "ext4"),
        Mount(2, "8:1", "/a/wt", "/mnt", "ext4"),
        Mount(3, "8:2", "/", "/x", "x"),
    ]
    mounts.append(Mount(4, "8:1", "/a/wt/in", "/part", "ext4"))
    assert list(names_by(mounts, "8:1", "/a/wt")) == ["/a/wt", "/mnt", "/part"]


def test_what_another_mount_hides_has_no_name() -> None:
    """/tmp in a namespace with another /tmp, and a bind mount below a directory that was mounted over later."""
    root = Mount(1, "8:1", "/", "/", "ext4", 0)
    over = Mount(2, "0:9", "/", "/tmp", "tmpfs", 1)
    assert list(names_by([root, over], "8:1", "/tmp/t")) == []
    bound = Mount(3, "8:1", "/tmp", "/a/b", "ext4", 1)
    assert list(names_by([root, over, bound], "8:1", "/tmp/t")) == ["/a/b/t"]
    assert list(names_by([root, over, bound, Mount(4, "0:9", "/", "/a", "tmpfs", 1)], "8:1", "/tmp/t")) == []
    on_top = Mount(5, "8:1", "/tmp", "/tmp", "ext4", 2)
    assert list(names_by([root, over, on_top], "8:1", "/tmp/t")) == ["/tmp/t"]


def test_what_has_a_name_lies_where_its_mount_says() -> None:
    """Another device, another part of the same one, and an unknown mount."""
    bound = Mount(3, "8:1", "/home/m/fake", "/tmp", "ext4", 1)
    assert not lies_in("/tmp/t/x", bound, "8:1", "/tmp/t")
    assert lies_in("/tmp/t/x", bound, "8:1", "/home/m/fake/t")
    assert not lies_in("/tmp/t/x", bound, "8:2", "/home/m/fake/t")
    assert not lies_in("/tmp/t/x", None, "8:1", "/tmp/t")


def test_files_are_told_from_what_a_program_calls_its_memory() -> None:
    """proc(5), maps; PR_SET_VMA_ANON_NAME."""
    maps = """\
7f0000000000-7f0000001000 r--p 00000000 08:01 42                         /usr/lib/a b.so
7f0000001000-7f0000002000 rw-p 00000000 00:00 0                          [anon:x /tmp/t/y]
7f0000002000-7f0000003000 rw-p 00000000 00:00 0
"""
    assert mapped_files(maps) == {"/usr/lib/a b.so"}


def test_escapes_of_mountinfo_are_undone() -> None:
    """proc(5)."""
    line = rb"36 35 98:0 / /mnt/a\040b rw,noatime shared:1 - ext3 /dev/root rw"
    assert list(mounts_of(line)) == [Mount(36, "98:0", "/", "/mnt/a b", "ext3", 35, "/dev/root", ("rw",))]
    line = rb"40 35 0:60 / /m rw - overlay none rw,lowerdir=/a\054b\134:c:/d,upperdir=/u\040v,workdir=/w"
    (overlay,) = mounts_of(line)
    assert list(made_of(overlay, 1)) == [
        ("lower directory", "/a,b:c"),
        ("lower directory", "/d"),
        ("upper directory", "/u v"),
        ("work directory", "/w"),
    ]


OVERLAY = Mount(4, "0:60", "/", "/m", "overlay", 1, "none", ("rw", "lowerdir+=/x/wt/l", "upperdir=wt/u"))
STACKED = Mount(4, "0:60", "/", "/m", "ecryptfs", 1, "/x/wt/.private", ("rw",))
BINDFS = Mount(4, "0:60", "/", "/m", "fuse.bindfs", 1, "/x/wt", ("rw", "user_id=1000", "group_id=1000"))


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        (Mount(4, "8:1", "/wt", "/m", "ext4", 1), "/x/wt is mounted at /m"),
        (Mount(4, "8:1", "/wt/sub", "/m", "ext4", 1), "/x/wt/sub is mounted at /m"),
        (Mount(4, "8:1", "/wt2", "/m", "ext4", 1), None),
        (Mount(4, "8:2", "/wt", "/m", "ext4", 1), None),
        (Mount(4, "8:1", "/", "/m", "ext4", 1), None),  # a mount of its parent
        (Mount(4, "8:1", "/wt//deleted", "/m", "ext4", 1), None),  # a deleted former directory
        (Mount(4, "0:9", "/", "/x/wt/in", "tmpfs", 2), "tmpfs is mounted on /x/wt/in"),
        (Mount(4, "0:9", "/", "/x/wt2/in", "tmpfs", 2), None),
        (OVERLAY, "the overlay at /m has its lower directory at /x/wt/l"),
        (replace(OVERLAY, options=("upperdir=wt/u",)), "the overlay at /m has its upper directory at wt/u"),
        (replace(OVERLAY, options=("upperdir=wt2/u", "workdir=/x/wt2", "lowerdir=/x")), None),
        (STACKED, "the ecryptfs at /m has its source at /x/wt/.private"),
        (BINDFS, "the fuse.bindfs at /m has its source at /x/wt"),
        (replace(BINDFS, options=("user_id=1001",)), None),  # another user's claim
        (replace(BINDFS, options=("user_id=0",)), "the fuse.bindfs at /m has its source at /x/wt"),
    ],
)
def test_a_mount_of_a_place_or_made_of_it_uses_it(mount: Mount, words: str | None) -> None:
    """A mount of it is known by device and root; others only by the names of their sources."""
    mounts = [Mount(1, "8:0", "/", "/", "ext4", 0), Mount(2, "8:1", "/", "/x", "ext4", 1), mount]
    assert use_by_mounts(mounts, "/x/wt", "8:1", "/wt", ["/x/wt"], 1000) == words


def test_what_a_mount_of_the_place_hides_is_not_mounted_in_it() -> None:
    """The directory is mounted on top of one where something was mounted before."""
    root, before = Mount(1, "8:1", "/", "/", "ext4", 0), Mount(2, "0:9", "/", "/m/in", "tmpfs", 1)
    mounts = [root, before, Mount(3, "8:1", "/wt", "/m", "ext4", 1)]
    assert use_by_mounts(mounts, "/wt", "8:1", "/wt", ["/wt", "/m"], 1000) == "/wt is mounted at /m"


def test_a_mount_point_is_not_used_by_what_shows_it_elsewhere() -> None:
    """Each mount namespace has a copy of the mount itself."""
    mounts = [Mount(1, "8:0", "/", "/", "ext4", 0), Mount(2, "8:1", "/a", "/x", "ext4", 1)]
    assert use_by_mounts(mounts, "/x", "8:1", "/a", ["/x"], 1000) is None
    mounts.append(Mount(3, "8:1", "/a/b", "/m", "ext4", 1))
    assert use_by_mounts(mounts, "/x", "8:1", "/a", ["/x"], 1000) == "/x/b is mounted at /m"


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
    """A parent directory does not count."""
    assert names_place(value, "/tmp/t") is names


def test_what_a_shell_left_behind_is_no_use() -> None:
    """PWD only names where it was started."""
    assert variable_naming(b"PWD=/tmp/t\0OLDPWD=/tmp/t\0_=/tmp/t/x\0HOME=/root", ["/tmp/t"]) is None
    assert variable_naming(b"HOME=/root\0TMPDIR=/tmp/t\0", ["/tmp/t"]) == "TMPDIR"
    assert variable_naming(b"\xff=/tmp/t", ["/tmp/t"]) == "\udcff"
