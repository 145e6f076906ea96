"""Conversations of agent programs: their ids, and the command that resumes one. Pure tables; no file is read.

Supported are the programs that keep each conversation in files of its own, named by its id:

claude   projects/<key>/<id>.jsonl below its directory
codex    sessions/<year>/<month>/<day>/rollout-<time>-<id>.jsonl below its directory
agy      antigravity-cli/conversations/<id>.db and brain/<id> (Antigravity)
"""

import re
import shlex
from dataclasses import asdict, dataclass

from watchdog.core.vendors import KNOWN
from watchdog.core.vendors.vendor import ID

RESUME = {name: vendor.resume for name, vendor in KNOWN.items() if vendor.resume}
_ID = re.compile(ID)
_FILES = {name: re.compile(vendor.conversation) for name, vendor in KNOWN.items() if vendor.conversation}


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation. `base`: its program's data directory; None: the usual one.

    `directory`: where its program was started; Claude Code must be started there again.
    """

    vendor: str
    id: str
    base: str | None = None
    directory: str | None = None

    @property
    def resume(self) -> str:
        """The command that resumes it."""
        command = RESUME[self.vendor].format(self.id)
        return command if self.directory is None else f"cd {shlex.quote(self.directory)} && {command}"


def kept_in(path: str | None, directory: str | None = None) -> Conversation | None:
    """The conversation whose file has this path; None: no known one."""
    for vendor, pattern in _FILES.items():
        if path is not None and (match := pattern.fullmatch(path)):
            return Conversation(vendor, match[2], match[1], directory)
    return None


def conversation_json(conversation: Conversation) -> dict[str, object]:
    """JSON for the helper and for the outcome of a kill request."""
    return asdict(conversation)


def conversation_of(data: object) -> Conversation | None:
    """The conversation in this JSON; None if it is not one: it may come from another uid, or from an edited row."""
    if not isinstance(data, dict):
        return None
    vendor, identifier = data.get("vendor"), data.get("id")
    if vendor not in RESUME or not isinstance(identifier, str) or not _ID.fullmatch(identifier):
        return None
    return Conversation(str(vendor), identifier, _path(data.get("base")), _path(data.get("directory")))


def _path(value: object) -> str | None:
    plain = isinstance(value, str) and value.startswith("/") and value.isprintable() and len(value) < 4096
    return str(value) if plain else None
