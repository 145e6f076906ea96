"""Which user chose the environment that a process was started with, decided by what the kernel recorded at its exec.

A set-uid program runs with the environment of the user who started it, which must not pass for the words of the user
that it runs as. What counts is the auxiliary vector (getauxval(3)): no later setuid(2) changes it.
"""

AT_PAGESZ, AT_UID, AT_EUID, AT_SECURE = 6, 11, 12, 23  # getauxval(3)
AUXILIARY_BYTES = 4096  # read at most of the vector; it has about 400
ENVIRONMENT_BYTES = 1 << 20  # read at most of the environment


def is_chosen_by(uid: int, auxiliary: bytes) -> bool:
    """Whether `uid` itself started the process with this auxiliary vector, and not the caller of a set-uid program."""
    for width in (8, 4):  # bytes of one number; the vector of a 32-bit program has 32-bit numbers
        whole = auxiliary[: len(auxiliary) // (2 * width) * 2 * width]
        numbers = memoryview(whole).cast("Q" if width == 8 else "I")
        values = dict(zip(numbers[::2].tolist(), numbers[1::2].tolist(), strict=True))
        if AT_PAGESZ in values:
            return (values.get(AT_UID), values.get(AT_EUID), values.get(AT_SECURE)) == (uid, uid, 0)
    return False


def variables(text: str) -> dict[str, str]:
    """The variables of an environment block: NAME=value items separated by NUL."""
    return dict(word.split("=", 1) for word in text.split("\0") if "=" in word)
