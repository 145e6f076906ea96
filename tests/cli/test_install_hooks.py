"""`install-hooks`: what stands in a vendor's file afterwards, and after `--uninstall`."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.conftest import PROGRAM
from watchdog.cli import verbs
from watchdog.cli.json_edit import parse, with_child, without_child
from watchdog.cli.vendor_settings import FILES, command_for
from watchdog.core.vendor_hooks import _EVENTS
from watchdog.errors import BadRequest

PLACES = {
    "claude": ".claude/settings.json",
    "codex": ".codex/hooks.json",
    "gemini": ".gemini/settings.json",
    "opencode": ".config/opencode/plugins/agent-watchdog.js",
}
LISTS = ("claude", "codex", "gemini")
OTHERS = """{
    // comments are read by Gemini CLI alone
    "model": "ü",
    "hooks": {
        "SessionStart": [{"matcher": "startup", "hooks": [{"type": "command", "command": "mine beat --from claude"}]}],
        "PreToolUse": [

        ]   ,
        "BeforeTool": [ { "hooks": [ { "type": "command", "command": "lint" } ] } ]
    },
    "last": [1, 2.50, {"a": null}]
}

"""
BEFORE = {
    "empty": "{}\n",
    "plain": '{\n  "model": "opus",\n  "env": {"A": "1"}\n}\n',
    "tabs": '{\n\t"model": "opus"\n}',
    "dos": '{\r\n  "model": "opus"\r\n}\r\n',
    "one line": '{"model":"opus","hooks":{"Stop":[{"hooks":[]}]}}',
    "others": re.sub(" *//.*\n", "", OTHERS).replace('"PreToolUse": [\n\n        ]   ,\n', ""),
    "bom": '\ufeff{\n  "a": 1\n}\n',
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of a person who has set nothing."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", [PROGRAM])
    return tmp_path


Do = Callable[..., str]


@pytest.fixture
def do(home: Path, capsys: pytest.CaptureFixture[str]) -> Do:
    """`agent-watchdog install-hooks WORDS`: what it printed; `status` is the exit status that is expected."""

    def call(*words: str, status: int = 0) -> str:
        assert verbs.main(["install-hooks", *words]) == status
        said = capsys.readouterr()
        return said.out if status == 0 else said.err

    return call


def write(home: Path, vendor: str, text: str) -> Path:
    path = home / PLACES[vendor]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def commands(path: Path, event: str) -> list[str]:
    groups = json.loads(path.read_text("utf-8-sig"))["hooks"].get(event, [])
    return [handler["command"] for group in groups for handler in group["hooks"]]


@pytest.mark.parametrize("vendor", PLACES)
def test_where_there_was_nothing_there_is_nothing_again(vendor: str, home: Path, do: Do) -> None:
    """A file of its own, of nobody else's business."""
    said = do(vendor)
    path = home / PLACES[vendor]
    assert f"+++ {path}" in said
    assert command_for(vendor, PROGRAM) in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "unchanged" in do(vendor)
    do(vendor, "--uninstall")
    assert not path.exists()
    assert "unchanged" in do(vendor, "--uninstall")


@pytest.mark.parametrize("vendor", LISTS)
@pytest.mark.parametrize("kind", BEFORE)
def test_what_is_there_stays(vendor: str, kind: str, home: Path, do: Do) -> None:
    """Installed once and twice, and byte for byte as before when it is taken out."""
    path = write(home, vendor, BEFORE[kind])
    path.chmod(0o640)
    do(vendor)
    installed = path.read_bytes()
    found = json.loads(installed.decode("utf-8-sig"))
    for event in FILES[vendor].events:
        assert commands(path, event)[-1] == command_for(vendor, PROGRAM)
        group = found["hooks"][event].pop()
        assert group["hooks"][0]["type"] == "command"
        if not found["hooks"][event]:
            del found["hooks"][event]
    if not found["hooks"]:
        del found["hooks"]
    assert found == json.loads(BEFORE[kind].removeprefix("\ufeff"))
    assert path.stat().st_mode & 0o777 == 0o640
    assert "unchanged" in do(vendor)
    assert path.read_bytes() == installed
    do(vendor, "--uninstall")
    assert path.read_bytes() == BEFORE[kind].encode()


def test_what_the_agent_works_on_is_not_imported(home: Path, do: Do) -> None:
    """A hook runs in the agent's environment; there PyPI's watchdog may come first."""
    (home / "watchdog").mkdir()
    (home / "watchdog" / "__init__.py").touch()
    do("claude")
    (command,) = commands(home / PLACES["claude"], "Stop")
    environ = {**os.environ, "PYTHONPATH": str(home), "PYTHONHOME": "/nowhere"}
    done = subprocess.run(["sh", "-c", command], env=environ, input="{}", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_comments_stay_where_the_vendor_reads_them(home: Path, do: Do) -> None:
    """Gemini CLI does; Claude Code does not, and would not start with such a file as it means it."""
    path = write(home, "gemini", OTHERS)
    do("gemini")
    assert "// comments are read by Gemini CLI alone" in path.read_text()
    do("gemini", "--uninstall")
    assert path.read_text() == OTHERS
    path.write_text('{\n  "a": 1, // one\n  "hooks": { /* none yet */ }\n}\n')
    do("gemini")
    assert "/* none yet */" in path.read_text()
    do("gemini", "--uninstall")
    assert path.read_text() == '{\n  "a": 1, // one\n  "hooks": { /* none yet */\n  }\n}\n'
    path = write(home, "claude", OTHERS)
    assert "line 2, column 5" in do("claude", status=78)
    assert path.read_text() == OTHERS


def test_a_dry_run_shows_and_does_nothing(home: Path, do: Do) -> None:
    path = write(home, "claude", BEFORE["plain"])
    said = do("claude", "--dry-run")
    assert '+        "command": ' not in path.read_text()
    assert '"command": ' in said
    assert "would be installed" in said
    assert path.read_text() == BEFORE["plain"]
    do("claude")
    assert "would be uninstalled" in do("claude", "--uninstall", "--dry-run")
    assert json.loads(do("claude", "--json", "--dry-run"))["action"] == "unchanged"


def test_a_former_place_of_ours_is_replaced(home: Path, do: Do) -> None:
    """The program has moved: no hook stays that leads nowhere. A group that is shared with others keeps them."""
    old = {"type": "command", "command": "'/old path/agent-watchdog' beat --from claude"}
    other = {"type": "command", "command": "lint"}
    hooks = {"Stop": [{"hooks": [other, old]}], "StopFailure": [{"hooks": [old]}], "PreToolUse": [{"hooks": [old]}]}
    path = write(home, "claude", json.dumps({"hooks": hooks}, indent=1))
    do("claude")
    assert commands(path, "Stop") == ["lint", command_for("claude", PROGRAM)]
    assert commands(path, "PreToolUse") == [command_for("claude", PROGRAM)]
    assert commands(path, "StopFailure") == []
    do("claude", "--uninstall")
    assert json.loads(path.read_text()) == {"hooks": {"Stop": [{"hooks": [other]}]}}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{,}", "line 1, column 2"),
        ('{\n"a": 1,\n}', "line 3, column 1"),
        ('{"a": 1', "',' or '}' was expected"),
        ("[]", "not a JSON object"),
        ('{"hooks": []}', "hooks: is not an object"),
        ('{"hooks": {"Stop": {}}}', "hooks.Stop: is not a list"),
        ('{"a": "\n"}', "control character"),
        ("{" * 9, "key"),
        ('{"a":' + "[" * 100000, "nested too deeply"),
        ("{} {}", "more follows"),
    ],
)
def test_a_broken_file_is_refused(text: str, what: str, home: Path, do: Do) -> None:
    """Whoever wrote it knows what it should be; we do not guess."""
    path = write(home, "claude", text)
    for words in ((), ("--uninstall",)):
        said = do("claude", *words, status=78)
        assert what in said
        assert str(path) in said
    assert path.read_text() == text


def test_what_is_not_ours_to_write_is_refused(home: Path, do: Do) -> None:
    """Another plugin of that name, a directory, no text, another person's file."""
    plugin = write(home, "opencode", "export const Other = 1\n")
    assert "another plugin" in do("opencode", status=78)
    do("opencode", "--uninstall")
    assert plugin.exists()
    path = write(home, "claude", "")
    path.write_bytes(b"\xff")
    assert "not UTF-8" in do("claude", status=78)
    path.unlink()
    path.mkdir()
    assert "not a regular file" in do("claude", status=78)
    path.rmdir()
    if os.getuid() == 0:
        path = write(home, "claude", "{}")
        os.chown(path, 65534, -1)
        assert "belongs to uid 65534" in do("claude", status=78)


def test_a_link_stays_a_link(home: Path, do: Do) -> None:
    """As keepers of dotfiles make them."""
    real = home / "dotfiles.json"
    real.write_text("{}\n")
    path = home / PLACES["claude"]
    path.parent.mkdir()
    path.symlink_to(real)
    do("claude")
    assert path.is_symlink()
    assert "beat --from claude" in real.read_text()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another uid")
def test_a_group_that_is_not_ones_own_is_no_obstacle(public: Path) -> None:
    """A file that root made and gave away has root's group still; nobody of that group may read what replaces it."""
    path = write(public, "claude", "{}\n")
    for place in (public, path.parent, path):
        os.chown(place, 65534, -1)
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", f"HOME={public}")
    subprocess.run([*as_nobody, PROGRAM, "install-hooks", "claude"], check=True, capture_output=True)
    assert "beat --from claude" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o604


def test_a_compact_file_says_that_no_hook_runs(home: Path, do: Do) -> None:
    write(home, "claude", '{"disableAllHooks":true}')
    assert "disableAllHooks is set there" in do("claude")


def test_a_vendors_own_variable_moves_it(home: Path, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEX_HOME", str(home / "elsewhere"))
    do("codex")
    assert (home / "elsewhere" / "hooks.json").exists()


def test_what_is_installed_is_understood() -> None:
    """Each event by its name, or as a mere sign on purpose. For Claude Code none that an older version refuses."""
    for vendor in LISTS:
        unknown = set(FILES[vendor].events) - set(_EVENTS[vendor])
        assert unknown <= {"SubagentStop", "PreCompact", "PreCompress"}, vendor
    old = {"SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Notification", "Stop"}
    assert set(FILES["claude"].events) == old | {"SubagentStop", "PreCompact", "SessionEnd"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.sampled_from([None, 1, 4, "\t"]), st.booleans())
def test_any_object_is_read_as_json_does_and_comes_back(value: dict[str, Any], indent: Any, ascii_: bool) -> None:
    """What was put in is cut out again, and nothing else moves."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_) + "\n"
    root = parse(text)
    assert root.value == value
    longer = with_child(text, root, 0, {"x": [1]}, "ours!")
    again = parse(longer)
    assert again.value == {**value, "ours!": {"x": [1]}}
    assert without_child(longer, again, again.children[-1]) == text


@given(st.text(alphabet='{}[]:,"\\/* \n1.e-truefalsn', max_size=12))
def test_what_json_refuses_is_refused(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    if isinstance(expected, dict):
        assert parse(text).value == expected
    else:
        with pytest.raises(BadRequest):
            parse(text)


PLUGIN = """
import {{ AgentWatchdog }} from "{plugin}"
const aborted = []
const abort = async (session) => void aborted.push(session.path.id)
const hooks = await AgentWatchdog({{ directory: "/srv", client: {{ session: {{ abort }} }} }})
const event = (type, properties) => hooks.event({{ event: {{ type, properties }} }})
for (const words of ["a busy", "a busy", "b busy", "a idle", "b retry", "b idle"]) {{
  const [session, type] = words.split(" ")
  void event("session.status", {{ sessionID: session, status: {{ type }} }}) // told in this order all the same
}}
await event("session.created", {{ info: {{ id: "c", parentID: "a" }} }})
await event("message.part.updated", {{}})
const call = [{{ tool: "bash", sessionID: "a" }}, {{ args: {{ timeout: 9000 }} }}]
const answer = await hooks["tool.execute.before"](...call).catch(String)
console.log(JSON.stringify({{ aborted, answer }}))
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run a plugin")
def test_the_plugin_of_opencode(home: Path) -> None:
    """Run by node as opencode's bun runs it; its hook keeps what it was told, and says stop at a tool.

    It speaks when it is loaded, before any session, and in the order of events, though each hook is a process.
    """
    hook = 'tee -a "$HOME/told" | grep -q "tool.execute" && echo \'{"stop": "enough"}\'; echo >>"$HOME/told"'
    (home / "p.mjs").write_text(FILES["opencode"].installed(None, hook))
    (home / "t.mjs").write_text(PLUGIN.format(plugin=home / "p.mjs"))
    done = subprocess.run(["node", str(home / "t.mjs")], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == {"aborted": ["a"], "answer": "Error: enough"}
    told = [json.loads(line) for line in (home / "told").read_text().splitlines()]
    assert [(e["hook_event_name"], e["busy"]) for e in told] == [
        ("plugin.loaded", 0),
        ("session.status", 1),
        ("session.status", 2),
        ("session.status", 1),
        ("session.status", 1),
        ("session.status", 0),
        ("session.created", 0),
        ("tool.execute.before", 0),
    ]
    assert [e["was"] for e in told if "was" in e] == ["busy", "busy", "retry"]
    assert told[-2]["parent"] == "a"
    assert told[-1]["tool_input"] == {"timeout": 9000}


def test_a_hook_of_gemini_has_time_on_a_busy_machine() -> None:
    """The last one of a turn is ended by Gemini CLI when its time is over: then it would be ended at its prompt."""
    beat = "agent-watchdog beat --from gemini"
    before = FILES["gemini"].installed(None, beat).replace("30000", "5000")  # as earlier versions had it
    told = json.loads(FILES["gemini"].installed(before, beat))["hooks"]["AfterAgent"]
    assert [hook["timeout"] for group in told for hook in group["hooks"]] == [30_000]


SLOW = """
import {{ writeFileSync }} from "node:fs"
import {{ AgentWatchdog }} from "{plugin}"
const hooks = await AgentWatchdog({{ directory: "/srv", client: {{}} }})
const status = (type) => ({{ type: "session.status", properties: {{ sessionID: "a", status: {{ type }} }} }})
await hooks.event({{ event: status("busy") }}) // goes on though its hook has not
void hooks.event({{ event: status("idle") }})
void hooks["tool.execute.after"]({{ tool: "bash", sessionID: "a" }}) // of the turn that Escape has ended
writeFileSync("{go}", "")
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run a plugin")
def test_a_word_of_opencode_is_not_lost_when_its_hook_is_slow(home: Path) -> None:
    """Without the last one, of the end of its turn, it would be ended at its prompt. The agent waits no longer."""
    hook = 'words=$(cat); until [ -e "$HOME/go" ]; do sleep 0.05; done; echo "$words" >>"$HOME/told"'
    plugin = FILES["opencode"].installed(None, hook)
    assert "PATIENCE_MS = 2000" in plugin
    (home / "p.mjs").write_text(plugin.replace("PATIENCE_MS = 2000", "PATIENCE_MS = 100"))
    (home / "t.mjs").write_text(SLOW.format(plugin=home / "p.mjs", go=home / "go"))
    subprocess.run(["node", str(home / "t.mjs")], timeout=60, check=True)
    told = [json.loads(line) for line in (home / "told").read_text().splitlines()]
    kinds = [(e["hook_event_name"], e.get("status", {}).get("type")) for e in told]
    assert kinds == [("plugin.loaded", None), ("session.status", "busy"), ("session.status", "idle")]
