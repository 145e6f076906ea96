"""Which processes are shared services, and which may be clients of one, by their command lines."""

import pytest

from watchdog.core.services import (
    CLAUDE,
    CODEX,
    PARTS,
    directory_in,
    may_be_client,
    named_in,
    service_of,
    works_anywhere,
    works_for_many,
)

HOME = "/home/ada"
BIN = f"{HOME}/.codex/packages/app-server-daemon/releases/0.171.0-x86_64-unknown-linux-musl/bin/codex"
NPM = "/n/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
EXE = "/n/@anthropic-ai/claude-code/bin/claude.exe"
NODE = "/usr/bin/node"

ROWS = [  # as seen in /proc (Codex 0.171.0, Claude Code 2.1.332)
    ([BIN, "app-server", "--listen", "unix://", "--analytics-default-enabled", "--managed-daemon"], BIN, CODEX),
    ([BIN, "-c", "model=x", "app-server", "--listen=unix:///run/c.sock"], BIN, CODEX),
    ([BIN, "app-server", "--listen", "ws://127.0.0.1:9"], BIN, CODEX),
    ([BIN, "app-server", "daemon", "pid-update-loop"], BIN, PARTS),
    ([BIN, "app-server"], BIN, None),  # on stdio: an editor's own
    ([BIN, "app-server", "--listen", "stdio://"], BIN, None),
    ([BIN, "app-server", "daemon", "stop"], BIN, None),
    ([NPM], NPM, None),
    ([NPM, "explain app-server --listen unix://"], NPM, None),
    (["vim", "app-server", "--listen", "unix://"], "/usr/bin/vim", None),
    ([EXE, "daemon", "run", "--origin", "transient", "--spawned-by", "{}"], EXE, CLAUDE),
    (["claude bg-pty-host", "--bg-pty-host", "/tmp/cc-daemon-1/a/pty/b.sock", "200", "50", "--", EXE], EXE, PARTS),
    (["claude bg-spare", "--bg-spare", "/tmp/cc-daemon-1/a/spare/c.claim.sock"], EXE, PARTS),
    ([EXE, "--session-id", "ef5e164c-1683-403a-af5e-2c6cf4d77a97", "go"], EXE, None),  # a session: an agent
    (["claude", "daemon", "runs too long"], EXE, None),
    (["opencode", "serve", "--port", "0"], "/n/opencode-ai/bin/opencode", None),  # only a user starts one: an agent
    ([NODE, "/n/@google/gemini-cli/bundle/gemini.js", "--acp"], NODE, None),  # belongs to its editor
]
CLIENTS = [
    ([NPM], NPM, True),
    ([NPM, "--cd", "/srv/api", "mend it"], NPM, True),
    ([NPM, "resume", "01a22856-bcc7-70f3-8cf8-61895a7c7b42"], NPM, True),
    ([BIN, "app-server", "proxy"], BIN, True),
    ([NPM, "--no-daemon"], NPM, False),
    ([NPM, "exec", "mend it"], NPM, False),
    ([NPM, "-m", "gpt", "exec", "mend it"], NPM, False),
    ([NPM, "mcp-server"], NPM, False),
    ([BIN, "app-server", "--listen", "unix://"], BIN, False),
    (["node", "/n/bin/codex"], NODE, False),  # it starts a client
    (["claude"], EXE, False),
]


@pytest.mark.parametrize(("argv", "executable", "service"), ROWS)
def test_a_process_is_a_shared_service(argv: list[str], executable: str, service: str | None) -> None:
    """By its arguments, if its program is the vendor's."""
    assert service_of(argv, executable) == service


@pytest.mark.parametrize(("argv", "executable", "client"), CLIENTS)
def test_a_process_may_be_a_client_of_the_app_server(argv: list[str], executable: str, client: bool) -> None:
    """Any that may have begun a session there; one too many only leaves the owner undecided."""
    assert may_be_client(argv, executable) is client


def test_only_the_app_server_does_the_work_itself() -> None:
    """A spare process of Claude Code's service that was given a session belongs to that session."""
    assert works_for_many([BIN, "app-server", "--listen", "unix://"], BIN)
    assert not works_for_many(["claude bg-spare", "--bg-spare", "/tmp/c.sock"], EXE)


def test_a_client_names_the_session_that_it_takes_up() -> None:
    """`resume` and `fork`; a prompt is not a session."""
    assert named_in([NPM, "-m", "x", "resume", "s-1"]) == {"s-1"}
    assert named_in([NPM, "resume", "--last"]) == frozenset()
    assert named_in([NPM, "resume this"]) == frozenset()
    assert directory_in([NPM, "--cd", "/srv/api", "go"]) == directory_in([NPM, "-C=/srv/api"]) == "/srv/api"
    assert directory_in([NPM, "go"]) is directory_in([NPM]) is directory_in([]) is directory_in([NPM, "--cd"]) is None
    assert works_anywhere([BIN, "app-server", "proxy"])
    assert works_anywhere([NPM, "agents"])
    assert not works_anywhere([NPM])
