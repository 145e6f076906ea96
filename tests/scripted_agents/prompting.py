"""A program in a terminal that draws its prompt as Claude Code does, and does what is submitted there.

prompting.py [dialog|stubborn]: its pid is in the file `pid`, and what is submitted in `lines`. `/exit` ends it, and
Ctrl-C clears a draft, or does nothing (stubborn). `dialog`: first it asks whether its folder is trusted; a key that
comes then is in `lines` as well, and ends it.
"""

import os
import sys
import termios
import tty

MODE = (sys.argv[1:] or [""])[0]
DIALOG = """\
 Quick safety check: Is this a project you created or one you trust?
 Security guide
 ❯ No, exit
   Yes, I trust this folder
 Enter to confirm · Esc to cancel
"""
RULE = "─" * 40


def note(words: str) -> None:
    """One line more."""
    with open("lines", "a") as file:
        file.write(words + "\n")


def show(draft: str) -> None:
    """The screen, with the cursor behind the draft."""
    if MODE == "dialog":
        sys.stdout.write("\x1b[2J\x1b[H" + DIALOG.replace("\n", "\r\n") + "\x1b[3;2H")
    else:
        sys.stdout.write(f"\x1b[2J\x1b[Hsome words\r\n{RULE}\r\n❯\xa0{draft}\x1b[7m \x1b[0m\r\n{RULE}")
        sys.stdout.write(f"\x1b[3;{3 + len(draft)}H")
    sys.stdout.flush()


with open("pid", "w") as file:
    file.write(str(os.getpid()))
before = termios.tcgetattr(0)
tty.setraw(0)
draft = ""
try:
    while True:
        show(draft)
        key = os.read(0, 1).decode()
        if MODE == "dialog":
            note(repr(key))
            break
        if key == "\r":
            note(draft)
            if draft == "/exit":
                break
            draft = ""
        elif key == "\x03":
            draft = draft if MODE == "stubborn" else ""
        else:
            draft += key
finally:
    termios.tcsetattr(0, termios.TCSADRAIN, before)
