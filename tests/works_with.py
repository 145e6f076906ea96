"""The table "Works with": each feature of five systems for AI agents, and the test that shows that it works here.

`python -m tests.works_with` writes tests/WORKS_WITH.md anew (`make events`). A feature is shown for a system by a test
that plays it with that system's own registry, or, where it is the same for every agent however it came, by one for all.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "tests" / "WORKS_WITH.md"

# The systems, with the source that reads their registry.
SYSTEMS = {
    "coffee": "MonolithicCoffeeMaker (`orchestrator_db`)",
    "hcom": "hcom (`hcom`)",
    "relay": "agent-relay (`agent_relay`)",
    "sessions": "tmux-agent-orchestrate, multi-agent-mux (`agent_sessions`)",
    "fleet": "apra-fleet (`fleet_tasks`)",
}
ALL = "all"  # agents are alike here, wherever they were found

# Key -> group, what it is, and which systems have it. A system without it has no row to fill.
FEATURES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "discover": ("Detect", "its agents are found in its registry, by identity", tuple(SYSTEMS)),
    "stalled": ("Detect", "stalled by heartbeat age, in its own rhythm", ("coffee",)),
    "unpunished": (
        "Detect",
        "silence is not punished where its rhythm promises nothing",
        ("hcom", "relay", "sessions"),
    ),
    "dead": ("Detect", "a main process that died, found at once", tuple(SYSTEMS)),
    "launch_failed": ("Detect", "a launch that failed", ("hcom", "relay", "fleet")),
    "terminal_gone": ("Detect", "terminal gone, registry says running", ("sessions",)),
    "state": ("Detect", "its own states; blocked and idle are no stall", ("coffee", "hcom", "sessions", "fleet")),
    "ttl": ("Detect", "runtime limit, time to live", ("coffee", "fleet")),
    "unresponsive": ("Detect", "unresponsive told from dead", ("fleet",)),
    "zombie": ("Detect", "a zombie is dead", tuple(SYSTEMS)),
    "reused": ("Detect", "a pid that passed on: the innocent lives, the entry is closed", tuple(SYSTEMS)),
    "harness": ("Detect", "wrapper and harness judged both", ("relay", "fleet")),
    "thresholds": ("Detect", "CPU and memory thresholds", ("coffee", "relay")),
    "crash_cause": ("Detect", "the likely cause of a crash", ("relay",)),
    "drift": ("Detect", "registry and processes that disagree are told, read-only", ("sessions",)),
    "singleton": ("Detect", "one agent of a type, the oldest kept", ("coffee",)),
    "wake": ("Detect", "grace after sleep and wake", ("hcom",)),
    "no_signal": ("Detect", '"no signal" never kills', ("fleet",)),
    "name": ("Select", "by id or name", tuple(SYSTEMS)),
    "several": ("Select", "several at once", ("hcom", "relay")),
    "pid": ("Select", "by pid", ("hcom", "relay")),
    "tag": ("Select", "by tag", ("hcom",)),
    "all": ("Select", "all", ("hcom", "relay")),
    "all_stalled": ("Select", "all that are stalled", ("coffee",)),
    "task": ("Select", "by task id", ("coffee", "fleet")),
    "orphans": ("Select", "orphans", ("hcom",)),
    "remote": ("Select", "those of other devices shown, never ended", ("hcom", "fleet")),
    "unregistered": ("Select", "no process that is no agent's", ("hcom", "relay", "sessions")),
    "preview": ("Select", "preview and dry run", ("hcom", "relay", "sessions")),
    "keys": ("Kill", "exit keys first", ("sessions",)),
    "stop_flag": ("Kill", "stop after the present tool call", ("fleet",)),
    "term": ("Kill", "TERM to the whole tree, a grace, KILL", tuple(SYSTEMS)),
    "tree": ("Kill", "what left its session or parent ends too", tuple(SYSTEMS)),
    "force": ("Kill", "at once, by force", ("coffee", "hcom", "relay")),
    "own_stop": ("Kill", "its own command stops it", ("hcom",)),
    "retries": ("Kill", "a wrapper that restarts its child does not", ("fleet",)),
    "blocked_writer": ("Kill", "one stopped inside a transaction blocks nobody", ("coffee",)),
    "close_pane": ("Panes", "closed after proved death: tmux", ("hcom", "sessions")),
    "close_kitty": ("Panes", "closed after proved death: kitty, wezterm", ("hcom",)),
    "pane_missing": ("Panes", "a pane that cannot be closed: the command to do it, exit 1", ("hcom",)),
    "headless": ("Panes", "skipped for headless agents", ("hcom", "sessions")),
    "tmux_server": ("Panes", "its own tmux server (-L)", ("sessions",)),
    "capture": ("Panes", "the last screen kept", ("sessions",)),
    "entry": ("Registry", "the entry closed as the system itself writes it", tuple(SYSTEMS)),
    "entry_last": ("Registry", "only after proved death, by compare-and-set", tuple(SYSTEMS)),
    "task_row": ("Registry", "its task failed, ready for retry or cancelled", ("coffee", "fleet")),
    "bytes": ("Registry", "all else byte for byte as it was", tuple(SYSTEMS)),
    "ghosts": ("Registry", "stale entries closed", tuple(SYSTEMS)),
    "thread": ("Registry", "a thread's ident in the pid column is not a pid", ("coffee",)),
    "event": ("Registry", "its own event of the end", ("hcom", "sessions")),
    "messages": ("Registry", "messages removed when asked for", ("relay",)),
    "schema": ("Registry", "another version of its layout left alone", tuple(SYSTEMS)),
    "worktree": ("Cleanup", "worktree and branch, nothing lost", ("coffee",)),
    "temp": ("Cleanup", "temp dirs, sockets, launch scripts", ("coffee", "hcom", "relay")),
    "retention": ("Cleanup", "what ended long ago goes after its time", ("fleet",)),
    "resume": ("Resume", "the conversation kept, and how to take it up again", ("hcom", "sessions")),
    "purge": ("Resume", "conversation files deleted only when asked for", ("sessions",)),
    "start": ("Resume", "starting agents", ("coffee", "hcom", "relay", "sessions", "fleet")),
    "restart": ("Resume", "restarting agents", ("coffee", "relay", "fleet")),
    "notify": ("Notify", "a crash or a kill is told", ("hcom", "relay")),
    "audit": ("Notify", "who did what, and why", ("coffee", "hcom", "fleet")),
    "json": ("Output", "JSON of the kill-stalled-agent command", ("coffee",)),
    "errors": ("Output", "agent_not_found, process_not_found, kill_failed, cleanup_failed", ("coffee",)),
    "lines": ("Output", "its cases as lines and exit statuses", ("hcom",)),
    "again": ("Output", "a second time: already dead, exit 0", tuple(SYSTEMS)),
    "sdk": ("Output", "an SDK that lists who is connected, and removes with or without messages", ("relay",)),
}

# What is not promised, and why.
NOT_PROMISED = {
    "start": "whoever starts agents goes on doing so",
    "restart": "whoever starts agents goes on doing so",
    "thresholds": "a busy agent is no broken one",
    "singleton": "how many of a type there may be is their starter's affair",
}

# Feature -> system, or `ALL` -> the test that shows it.
_DB = "tests/owner/sources/test_orchestrator_db.py"
_E2E = "tests/e2e/test_orchestrator_db.py"
_TASKS = "tests/owner/sources/test_fleet_tasks.py"
_TASKS_E2E = "tests/e2e/test_fleet_tasks.py"
_PANES = "tests/owner/terminals/test_panes.py"
_TERMINALS = "tests/owner/terminals/test_other_terminals.py"
_MUX = "tests/owner/sources/test_agent_sessions.py"
_MUX_E2E = "tests/e2e/test_agent_sessions.py"
SHOWN: dict[str, dict[str, str]] = {
    "discover": {
        "sessions": f"{_MUX}::test_a_row_means_the_process_of_its_pane",
        "fleet": f"{_TASKS}::test_a_wrapper_is_an_agent_with_its_rhythm",
        "coffee": f"{_DB}::test_a_documented_row_is_told_with_its_beat_and_the_time_that_its_pid_stood_there",
    },
    "stalled": {"coffee": f"{_E2E}::test_an_agent_that_stops_beating_is_killed_and_its_row_and_task_say_so"},
    "dead": {ALL: "tests/e2e/test_story.py::test_an_exit_is_found_without_a_sweep"},
    "state": {
        "sessions": f"{_MUX}::test_rows_that_have_ended_are_told_and_stay",
        "fleet": f"{_TASKS}::test_the_status_says_how_it_ended",
        "coffee": f"{_DB}::test_a_real_row_takes_its_beat_and_state_from_the_file_of_its_agent",
    },
    "ttl": {ALL: "tests/e2e/test_signals.py::test_the_expiry_of_a_time_to_live_is_reported_in_advance"},
    "unresponsive": {ALL: "tests/e2e/test_neighbours.py::test_a_stopped_agent_stalls_on_time_and_alone"},
    "zombie": {ALL: "tests/e2e/test_cases.py::test_h7_a_zombie_is_dead_and_its_parent_is_left_alone"},
    "reused": {
        "sessions": f"{_MUX_E2E}::test_a_row_without_its_session_is_terminated_and_an_innocent_process_lives",
        "fleet": f"{_TASKS_E2E}::test_a_task_whose_wrapper_was_killed_is_closed_and_an_innocent_process_lives",
        "coffee": f"{_E2E}::test_leftovers_of_an_orchestrator_are_closed_without_a_signal",
    },
    "harness": {
        "fleet": f"{_TASKS_E2E}::test_cancel_kills_the_wrapper_and_nothing_is_restarted",
        "relay": "tests/e2e/test_sources.py::test_a_wrapper_ends_when_its_child_has_died",
    },
    "crash_cause": {ALL: "tests/e2e/test_out_of_memory.py::test_an_oom_kill_by_the_kernel_is_reported_as_such"},
    "wake": {ALL: "tests/kill/test_safeguards.py::test_after_a_gap_a_suspend_or_a_set_clock_no_kill_for_two_intervals"},
    "no_signal": {ALL: "tests/e2e/test_story.py::test_an_agent_that_promised_no_beats_lives"},
    "name": {ALL: "tests/cli/test_kill.py::test_kill_prints_json_with_the_keys_of_the_command"},
    "several": {ALL: "tests/control/routes/test_kill.py::test_one_bad_target_does_not_stop_the_others"},
    "pid": {ALL: "tests/control/routes/test_kill.py::test_a_pid_of_an_agent_is_a_target"},
    "all_stalled": {ALL: "tests/control/routes/test_kill.py::test_stalled_picks_those_stalled_or_silent_for_longer"},
    "task": {ALL: "tests/control/routes/test_kill.py::test_stop_and_cancel_end_politely"},
    "orphans": {ALL: "tests/e2e/test_reap.py::test_only_orphans_found_by_marker_or_identity_are_killed"},
    "preview": {ALL: "tests/control/routes/test_kill.py::test_a_group_from_within_an_agents_tree_is_only_shown"},
    "keys": {ALL: "tests/e2e/test_pane.py::test_stop_types_the_exit_keys_and_the_agent_leaves"},
    "stop_flag": {ALL: "tests/e2e/test_stop.py::test_cancel_ends_a_looping_agent_after_its_present_tool_call"},
    "term": {ALL: "tests/e2e/test_story.py::test_a_silent_agent_is_killed_whole_and_cleaned_up"},
    "tree": {
        "sessions": f"{_MUX_E2E}::test_kill_ends_what_ignores_the_hangup_of_its_pane_and_the_row_is_stopped",
        ALL: "tests/e2e/test_cases_of_kills.py::test_a1_leftovers_of_a_dead_main_process_are_killed",
    },
    "force": {ALL: "tests/control/routes/test_kill.py::test_force_and_grace_reach_the_worker"},
    "retries": {
        "fleet": f"{_TASKS_E2E}::test_cancel_kills_the_wrapper_and_nothing_is_restarted",
        ALL: "tests/kill/test_terminate.py::test_a_wrapper_that_restarts_what_dies_restarts_nothing_at_the_end",
    },
    "blocked_writer": {"coffee": f"{_E2E}::test_a_writer_stopped_inside_its_transaction_is_killed_and_no_other"},
    "close_pane": {ALL: f"{_PANES}::test_the_pane_of_a_launcher_is_closed_after_its_agent"},
    "close_kitty": {
        ALL: "tests/owner/terminals/test_other_terminals.py::test_a_window_is_found_read_typed_into_and_closed"
    },
    "pane_missing": {ALL: "tests/e2e/test_pane.py::test_a_pane_that_cannot_be_closed_leaves_the_kill_a_success"},
    "headless": {ALL: f"{_PANES}::test_who_has_no_terminal_sits_in_no_pane"},
    "tmux_server": {
        "sessions": f"{_MUX}::test_a_row_means_the_process_of_its_pane",
        ALL: f"{_PANES}::test_a_server_at_another_socket_with_the_same_names_is_another",
    },
    "capture": {ALL: "tests/e2e/test_pane.py::test_a_killed_agents_pane_is_closed_and_its_last_screen_kept"},
    "entry": {
        "sessions": f"{_MUX}::test_each_end_has_its_fields_in_both_files",
        "fleet": f"{_TASKS}::test_a_killed_wrapper_is_cancelled_and_nothing_else_changes",
        "coffee": f"{_DB}::test_the_end_of_a_real_row_is_local_time_and_its_status_file_says_stopped",
    },
    "entry_last": {
        "sessions": f"{_MUX}::test_a_resumed_row_stays_and_so_does_one_whose_pane_lives",
        "fleet": f"{_TASKS}::test_another_run_and_what_ended_by_itself_stay_as_they_are",
        "coffee": f"{_DB}::test_a_beat_changes_no_token_and_another_pid_does",
    },
    "task_row": {
        "fleet": f"{_TASKS_E2E}::test_cancel_kills_the_wrapper_and_nothing_is_restarted",
        "coffee": f"{_DB}::test_each_end_has_its_words",
    },
    "bytes": {
        "sessions": f"{_MUX}::test_nothing_outside_of_the_row_changes",
        "fleet": f"{_TASKS}::test_a_killed_wrapper_is_cancelled_and_nothing_else_changes",
        "coffee": f"{_DB}::test_the_end_is_written_as_that_layout_writes_it_and_nowhere_else",
    },
    "ghosts": {
        "sessions": f"{_MUX_E2E}::test_a_row_without_its_session_is_terminated_and_an_innocent_process_lives",
        "fleet": f"{_TASKS_E2E}::test_a_task_whose_wrapper_was_killed_is_closed_and_an_innocent_process_lives",
        "coffee": f"{_E2E}::test_leftovers_of_an_orchestrator_are_closed_without_a_signal",
    },
    "thread": {"coffee": f"{_E2E}::test_leftovers_of_an_orchestrator_are_closed_without_a_signal"},
    "schema": {
        "sessions": f"{_MUX}::test_a_layout_that_is_not_understood_is_left_alone",
        "fleet": f"{_TASKS}::test_what_is_not_understood_is_told_as_that_and_left",
        "coffee": f"{_DB}::test_rows_that_are_none_are_passed_over_and_a_foreign_schema_is_left_alone",
    },
    "worktree": {ALL: "tests/e2e/test_story.py::test_a_dirty_worktree_is_kept_and_reported"},
    "temp": {ALL: "tests/e2e/test_reap.py::test_temp_dirs_of_the_dead_go_after_retention_and_those_of_the_living_stay"},
    "notify": {ALL: "tests/e2e/test_crash.py::test_a_crash_is_reported_by_the_stream_and_by_the_command"},
    "audit": {ALL: "tests/cli/test_why.py::test_why_tells_the_whole_story_in_order"},
    "json": {ALL: "tests/control/views/test_results.py::test_one_kill_polite_and_by_force_has_the_documented_values"},
    "unregistered": {ALL: "tests/control/test_resolve.py::test_a_pid_that_is_no_agents_is_refused_with_a_hint"},
    "own_stop": {"hcom": "tests/e2e/test_stop.py::test_the_own_stop_command_of_the_program_that_lists_it_comes_first"},
    "sdk": {"relay": "tests/client/test_clients.py::test_a_dead_agent_is_removed_and_its_messages_only_if_asked_for"},
    "messages": {"relay": "tests/e2e/test_removing.py::test_its_messages_are_removed_with_it_and_no_others"},
    "resume": {
        "sessions": f"{_MUX}::test_a_purge_terminates_a_stopped_row_and_keeps_its_id",
        ALL: "tests/e2e/test_resuming.py::test_a_stopped_conversation_can_be_resumed_until_it_is_purged",
    },
    "purge": {
        "sessions": f"{_MUX}::test_a_purge_terminates_a_stopped_row_and_keeps_its_id",
        ALL: "tests/owner/test_conversations.py::test_a_purge_moves_that_conversation_alone",
    },
    "errors": {ALL: "tests/control/views/test_results.py::test_an_error_has_the_documented_keys"},
    "again": {ALL: "tests/cli/test_kill.py::test_kill_prints_json_with_the_keys_of_the_command"},
    "tag": {ALL: "tests/cli/test_cases_of_hcom.py::test_a_case_has_its_line_and_exit_status"},
    "all": {ALL: "tests/cli/test_cases_of_hcom.py::test_a_case_has_its_line_and_exit_status"},
    "lines": {"hcom": "tests/cli/test_cases_of_hcom.py::test_a_case_has_its_line_and_exit_status"},
    "unpunished": {"sessions": f"{_MUX}::test_a_row_means_the_process_of_its_pane"},
    "terminal_gone": {
        "sessions": f"{_MUX_E2E}::test_a_row_without_its_session_is_terminated_and_an_innocent_process_lives"
    },
    "event": {"sessions": f"{_MUX}::test_its_job_is_told_once"},
    "launch_failed": {
        "fleet": f"{_TASKS_E2E}::test_a_task_whose_wrapper_was_killed_is_closed_and_an_innocent_process_lives"
    },
    "drift": {"sessions": f"{_MUX}::test_what_the_registry_and_tmux_say_differently_is_told"},
    "remote": {"fleet": f"{_TASKS}::test_members_of_other_devices_are_shown_and_no_secret_of_theirs"},
    "retention": {"fleet": "tests/owner/finders/test_fleet_tasks.py::test_each_goes_after_its_time"},
}

_HCOM = "tests/owner/sources/test_hcom.py"
_RELAY = "tests/owner/sources/test_agent_relay.py"
_BOTH = "tests/e2e/test_comparison.py"
_PLAYED = f"{_BOTH}::test_it_ends_as_the_comparison_says"
# Those of hcom and agent-relay, likewise. `make peers` plays them with the programs themselves.
for _system, _rows in {
    "hcom": {
        "discover": f"{_HCOM}::test_an_agent_is_told_with_all_that_its_row_says",
        "unpunished": f"{_HCOM}::test_silence_counts_where_hcom_itself_promises_beats",
        "launch_failed": f"{_BOTH}::test_a_launch_that_died_is_closed_in_both",
        "state": f"{_HCOM}::test_silence_counts_where_hcom_itself_promises_beats",
        "zombie": _PLAYED,
        "reused": _PLAYED,
        "tag": f"{_BOTH}::test_a_tag_of_hcoms_means_its_agents",
        "orphans": f"{_BOTH}::test_a_leftover_process_of_hcom_can_be_killed_by_name",
        "remote": f"{_HCOM}::test_another_device_is_shown_and_left_alone",
        "term": _PLAYED,
        "tree": _PLAYED,
        "own_stop": f"{_BOTH}::test_an_interactive_agent_of_hcoms_is_stopped_by_hcom_first",
        "pane_missing": _PLAYED,
        "entry": f"{_HCOM}::test_the_end_is_written_as_hcom_writes_it",
        "entry_last": _PLAYED,
        "bytes": f"{_HCOM}::test_the_end_is_written_as_hcom_writes_it",
        "ghosts": _PLAYED,
        "event": f"{_HCOM}::test_the_end_is_written_as_hcom_writes_it",
        "schema": f"{_HCOM}::test_a_layout_that_is_not_known_is_read_and_not_written",
        "temp": f"{_HCOM}::test_its_launch_scripts_go_and_no_others",
        "resume": f"{_HCOM}::test_the_end_is_written_as_hcom_writes_it",
        "lines": _PLAYED,
        "again": _PLAYED,
    },
    "relay": {
        "discover": f"{_RELAY}::test_wrapper_and_harness_are_one_agent",
        "unpunished": f"{_RELAY}::test_connected_and_registered_are_two_things",
        "launch_failed": f"{_BOTH}::test_a_launch_that_died_is_closed_in_both",
        "harness": _PLAYED,
        "reused": f"{_BOTH}::test_a_reused_pid_of_a_worker_belongs_to_a_bystander",
        "entry": f"{_RELAY}::test_the_end_takes_it_from_those_who_live",
        "entry_last": f"{_RELAY}::test_another_run_of_that_name_stays",
        "bytes": f"{_RELAY}::test_the_end_takes_it_from_those_who_live",
        "ghosts": f"{_BOTH}::test_a_launch_that_died_is_closed_in_both",
        "messages": f"{_RELAY}::test_its_messages_go_where_that_is_asked_for",
        "schema": f"{_RELAY}::test_a_store_of_another_layout_is_left_alone",
        "temp": f"{_RELAY}::test_a_dead_socket_of_the_ended_goes_a_living_one_stays",
    },
}.items():
    for _feature, _test in _rows.items():
        SHOWN.setdefault(_feature, {})[_system] = _test


def shown_by(feature: str, system: str) -> str | None:
    """The test that shows it, if there is one; a system's own before the one for all."""
    tests = SHOWN.get(feature, {})
    return tests.get(system) or tests.get(ALL)


def open_rows() -> list[tuple[str, str]]:
    """Feature and system of each row that no test shows yet, but for what is not promised."""
    rows = [(feature, system) for feature, (_, _, systems) in FEATURES.items() for system in systems]
    return [row for row in rows if row[0] not in NOT_PROMISED and shown_by(*row) is None]


def names_in(path: str) -> set[str]:
    """The tests that a file holds."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def table() -> str:
    """The whole file."""
    rows = sum(len(systems) for _, _, systems in FEATURES.values())
    left = len(open_rows())
    lines = [
        "# Works with",
        "",
        "What five systems for AI agents do, and the test that shows that it works here: on that system's own",
        "registry, or, where all agents are alike however they came, one test with ours for all. `make peers` plays",
        "hcom and agent-relay themselves. Made from [works_with.py](works_with.py) by `make events`. ✓ leads to the",
        "test; `open`: none yet; `no`: not promised; empty: that system has no such thing.",
        "",
        f"{rows} rows, {left} of them open.",
    ]
    for group in dict.fromkeys(group for group, _, _ in FEATURES.values()):
        lines += [
            "",
            f"## {group}",
            "",
            f"| feature | {' | '.join(SYSTEMS.values())} |",
            f"| --- |{' --- |' * len(SYSTEMS)}",
        ]
        for feature, (of, words, systems) in FEATURES.items():
            if of == group:
                cells = [_cell(feature, system) if system in systems else "" for system in SYSTEMS]
                lines.append(f"| {words} | {' | '.join(cells)} |")
    lines += ["", "## Not promised", ""]
    lines += [f"- {FEATURES[feature][1]}: {why}" for feature, why in NOT_PROMISED.items()]
    lines += ["- remote devices, macOS, Windows: the daemon acts on the processes of its own Linux"]
    return "\n".join(lines) + "\n"


def _cell(feature: str, system: str) -> str:
    test = shown_by(feature, system)
    if test is None:
        return "no" if feature in NOT_PROMISED else "open"
    path, _, name = test.partition("::")
    return f'[✓]({path.removeprefix("tests/")} "{name}")'


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
