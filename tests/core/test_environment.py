"""Which user chose a process's environment, by its auxiliary vector."""

from watchdog.core.environment import is_chosen_by, variables


def test_32_bit_and_broken_vectors() -> None:
    """Pairs of 32-bit numbers count too; garbage, or a vector without a page size, proves nothing."""
    uid = 1000
    pairs = [(6, 4096), (11, uid), (12, uid), (23, 0), (0, 0)]
    for size in (4, 8):
        vector = b"".join(number.to_bytes(size, "little") for pair in pairs for number in pair)
        assert is_chosen_by(uid, vector)
        secure = vector.replace(b"\x17" + bytes(2 * size - 1), b"\x17" + bytes(size - 1) + b"\1" + bytes(size - 1))
        assert not is_chosen_by(uid, secure)
    assert not is_chosen_by(uid, b"")
    assert not is_chosen_by(uid, b"\1\2\3")
    assert not is_chosen_by(uid + 1, vector)


def test_variables_are_what_has_an_equals_sign() -> None:
    """A program may write anything there; a value may contain an equals sign or be empty."""
    assert variables("A=1\0B=x=y\0\0C\0D=\0") == {"A": "1", "B": "x=y", "D": ""}
