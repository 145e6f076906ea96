"""Where each vendor keeps its hooks, and their text with ours installed. Text in, text out.

Claude Code ignores a whole settings file that names an event unknown to its version (several tools broke their users'
settings that way in 2026), so only events are used that all versions with session hooks have.

Tests: tests/cli/test_install_hooks.py.
"""

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from watchdog.cli.json_edit import Node, parse, with_child, without_child
from watchdog.errors import BadRequest

_CODEX_SECONDS = 3  # its maximum for SessionEnd and Interrupt; it warns about more at each start
# Its session file does not record that a turn ended well, so a slow hook's report must not be lost.
_GEMINI_MILLISECONDS = 30_000
_PLUGIN_MARK = "agent-watchdog install-hooks opencode"


@dataclass(frozen=True, slots=True)
class HookFile:
    """One vendor's file. `home`: the variable for its directory, and the default below HOME."""

    vendor: str
    home: tuple[str, str]
    below: str
    events: tuple[str, ...] = ()
    handler: tuple[tuple[str, object], ...] = ()  # members of each handler besides the command
    comments: bool = False
    notes: tuple[str, ...] = ()

    def path(self, environ: Mapping[str, str]) -> str:
        """Its path. Raises BadRequest without a home directory."""
        variable, usual = self.home
        home = environ.get("HOME", "")
        if not environ.get(variable) and not home.startswith("/"):
            raise BadRequest("HOME is not set; whose hooks?")
        return os.path.abspath(os.path.join(environ.get(variable) or os.path.join(home, usual), self.below))

    def installed(self, before: str | None, command: str) -> str:
        """The file with our hooks; unchanged if they are there. Raises BadRequest for an unknown format."""
        if self.vendor == "opencode":
            return _plugin(before, command)
        if before is None or not before.strip():
            wanted = {event: [self._group(event, command)] for event in self.events}
            # Without a final newline, which shows that the file is entirely ours.
            return json.dumps({"hooks": wanted}, indent=2)
        if self._complete(before, command):
            return before
        text = self.removed(before)
        if text is None:
            return self.installed(None, command)
        for event in self.events:
            text = self._with_group(text, event, self._group(event, command))
        return text

    def removed(self, before: str | None) -> str | None:
        """The file without our hooks; None: there is none, or it had only ours."""
        if before is None:
            return None
        if self.vendor == "opencode":
            return None if _PLUGIN_MARK in before else before
        text = before
        while (cut := self._cut(text)) is not None:
            text = cut
        return None if text == "{}" and text != before else text

    def _group(self, event: str, command: str) -> dict[str, object]:
        return {"hooks": [{"type": "command", "command": command, **dict(self.handler)}]}

    def _hooks(self, text: str) -> tuple[Node, Node | None]:
        """The document and its `hooks`. Raises BadRequest for structures that the vendor does not document."""
        root = parse(text, comments=self.comments)
        hooks = root.member("hooks")
        if hooks is not None and not isinstance(hooks.value, dict):
            raise BadRequest("hooks: is not an object")
        for event in hooks.children if hooks is not None else ():
            if event.key in self.events and not isinstance(event.value, list):
                raise BadRequest(f"hooks.{event.key}: is not a list")
        return root, hooks

    def _with_group(self, text: str, event: str, group: object) -> str:
        root, hooks = self._hooks(text)
        if hooks is None:
            return with_child(text, root, 0, {event: [group]}, "hooks")
        groups = hooks.member(event)
        if groups is None:
            return with_child(text, hooks, 1, [group], event)
        return with_child(text, groups, 2, group)

    def _complete(self, text: str, command: str) -> bool:
        """Whether it contains exactly what we would install."""
        _, hooks = self._hooks(text)
        found = [(event.key, group.value) for event, group, _ in self._ours(hooks)]
        return sorted(found, key=repr) == sorted(((e, self._group(e, command)) for e in self.events), key=repr)

    def _ours(self, hooks: Node | None) -> list[tuple[Node, Node, Node]]:
        """Our handlers: event, group, handler. Anything of another structure is not ours."""
        command = re.compile(rf"agent-watchdog'? beat --from {self.vendor}$")
        found = []
        for event in hooks.children if hooks is not None else ():
            for group in event.children:
                handlers = group.member("hooks") if isinstance(group.value, dict) else None
                for handler in handlers.children if handlers is not None else ():
                    said = handler.value.get("command") if isinstance(handler.value, dict) else None
                    if isinstance(said, str) and command.search(said):
                        found.append((event, group, handler))
        return found

    def _cut(self, text: str) -> str | None:
        """The text without one handler of ours and what it leaves empty; None: there is none."""
        root, hooks = self._hooks(text)
        ours = self._ours(hooks)
        if not ours or hooks is None:
            return None
        event, group, handler = ours[0]
        handlers = group.member("hooks")
        assert handlers is not None
        for parent, child in ((handlers, handler), (event, group), (hooks, event), (root, hooks)):
            around = text[parent.start + 1 : child.begin] + text[child.end : parent.end - 1]
            if len(parent.children) > 1 or parent is root or around.strip():  # a user's comment
                return without_child(text, parent, child)
        return None


def _plugin(before: str | None, command: str) -> str:
    """opencode's plugin: it accepts a program instead of a list of commands."""
    if before is not None and _PLUGIN_MARK not in before:
        raise BadRequest("is another plugin, not ours; rename or remove it first")
    with open(os.path.join(os.path.dirname(__file__), "opencode.js"), encoding="utf-8") as file:
        template = file.read()
    return template.replace('"@HOOK@"', json.dumps(command))


def command_for(vendor: str, program: str) -> str:
    """The command of a hook, for a shell.

    It runs in its agent's environment, whose PYTHONPATH the agent controls: PyPI's watchdog there would be imported.
    """
    return f"env -u PYTHONPATH -u PYTHONHOME {shlex.quote(program)} beat --from {vendor}"


_HOOK_FILES = (
    HookFile(
        "claude",
        ("CLAUDE_CONFIG_DIR", ".claude"),
        "settings.json",
        (
            "SessionStart",
            "UserPromptSubmit",
            "PreToolUse",
            "PostToolUse",
            "Notification",
            "Stop",
            "SubagentStop",
            "PreCompact",
            "SessionEnd",
        ),
        (("timeout", 5),),
        notes=(
            "Running sessions read their hooks when they are restarted; until then only a daemon of their own"
            " user knows them, by Claude Code's list of them; root's does not.",
        ),
    ),
    HookFile(
        "codex",
        ("CODEX_HOME", ".codex"),
        "hooks.json",
        (
            "SessionStart",
            "UserPromptSubmit",
            "PreToolUse",
            "PermissionRequest",
            "PostToolUse",
            "SubagentStop",
            "PreCompact",
            "Stop",
            "Interrupt",
            "SessionEnd",
        ),
        (("timeout", _CODEX_SECONDS),),
        notes=(
            "Codex runs a hook only after you have trusted it: start codex and look at /hooks. It asks again"
            " whenever the command changes.",
        ),
    ),
    HookFile(
        "gemini",
        ("GEMINI_CLI_HOME", ""),
        ".gemini/settings.json",
        (
            "SessionStart",
            "BeforeAgent",
            "BeforeTool",
            "AfterTool",
            "Notification",
            "PreCompress",
            "AfterAgent",
            "SessionEnd",
        ),
        (("name", "agent-watchdog"), ("timeout", _GEMINI_MILLISECONDS)),
        comments=True,
        notes=("Running sessions read their hooks when they are restarted.",),
    ),
    HookFile(
        "opencode",
        ("XDG_CONFIG_HOME", ".config"),
        "opencode/plugins/agent-watchdog.js",
        notes=("opencode loads its plugins when it starts.",),
    ),
)
FILES = {file.vendor: file for file in _HOOK_FILES}
