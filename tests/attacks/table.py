"""Each row of the security review with the tests that play it: what worked at f87b3bd, and what held and must go on so.

`tests/test_attack_table.py` holds it whole: a test that is named here exists, and no row is without one.
"""

# Attacks that worked at f87b3bd: in each row tests that were seen to fail there, and its siblings; most failed, too.
WORKED: dict[str, tuple[str, ...]] = {
    "C1 a user becomes root by way of a setuid program and a fake terminal": (
        "tests/attacks/test_setuid.py::test_no_user_becomes_root",
        "tests/attacks/test_setuid.py::test_no_agent_of_a_user_ever_becomes_roots",
        "tests/attacks/test_ownership.py",
        "tests/attacks/test_terminals.py",
    ),
    "C2 a user has a directory of root deleted": ("tests/attacks/test_ownership.py",),
    "H1 a read of /proc that never returns blinds the daemon": (
        "tests/attacks/test_hung_reads.py",
        "tests/attacks/test_stop.py",
    ),
    "H2 a user fills root's disk": (
        "tests/attacks/test_budgets.py::test_one_user_fills_neither_registry_nor_log",
        "tests/attacks/test_budgets.py::test_on_a_full_disk_roots_kill_and_the_daemons_own_are_done",
        "tests/attacks/test_admission.py::test_holding_and_lifting_without_end_needs_one_row_an_agent",
    ),
    "H3 sub-uids beat every limit for a uid": (
        "tests/attacks/test_admission.py::test_the_subordinate_uids_of_one_user_exhaust_nothing",
        "tests/attacks/test_admission.py::test_the_connections_of_subordinate_uids_are_one_users",
        "tests/attacks/test_admission.py::test_hooks_that_hang_take_no_place_of_roots",
        "tests/attacks/test_admission.py::test_names_that_are_nobodys_cost_what_they_take",
    ),
    "H3b helpers stay, one for each uid": (
        "tests/attacks/test_helpers.py::test_helpers_of_twenty_uids_end_when_they_are_idle",
        "tests/attacks/test_helpers.py::test_an_idle_helper_that_its_owner_has_stopped_ends_too",
        "tests/attacks/test_helpers.py::test_helpers_of_one_call_each_leave_nothing",
        "tests/attacks/test_helpers.py::test_a_crowd_of_uids_gets_only_so_many_helpers_and_roots_is_served",
    ),
    "H4 code that a dead agent left runs in its owner's helper": ("tests/attacks/test_git.py",),
    "M1 one user holds everybody's kills": (
        "tests/attacks/test_budgets.py::test_one_users_silent_agents_hold_back_no_kill_of_roots",
        "tests/attacks/test_budgets.py::test_one_users_kills_use_up_no_budget_of_roots",
    ),
    "M2 requests, helpers and datagrams without a limit of cost": (
        "tests/attacks/test_admission.py::test_what_root_asks_comes_before_what_thirty_clients_have_asked",
        "tests/attacks/test_admission.py::test_restore_by_thirty_clients_starts_one_helper_at_a_time",
        "tests/attacks/test_admission.py::test_a_flood_on_250_sockets_delays_no_sweep_and_no_stall",
        "tests/attacks/test_admission.py::test_names_that_are_nobodys_cost_what_they_take",
        "tests/attacks/test_admission.py::test_what_is_no_http_costs_as_a_request_does",
        "tests/attacks/test_admission.py::test_knocking_without_end_locks_nobody_out",
    ),
    "M3 root's daemon signals what the owner could not": ("tests/attacks/test_ownership.py",),
    "M4 a helper is traced by its owner": (
        "tests/attacks/test_helpers.py::test_no_helper_can_be_traced_by_its_owner_at_any_moment",
        "tests/attacks/test_helpers.py::test_a_helper_whose_limits_its_owner_lowers_is_replaced",
        "tests/attacks/test_helpers.py::test_a_parser_that_was_taken_over_can_do_little",
    ),
    "M5 another user's note is an instruction to root's model": (
        "tests/attacks/test_prompt_injection.py::test_the_words_of_another_users_agent_are_marked_in_every_answer",
        "tests/attacks/test_prompt_injection.py::test_a_cursor_holds_no_text_of_a_foreign_registry",
        "tests/cli/test_quoting.py::test_a_quoted_text_is_one_line_of_ascii_that_ends_where_it_says",
    ),
    "L1 names in /tmp that somebody else takes first": (
        "tests/attacks/test_squatting.py::test_a_squatted_trash_keeps_no_temp_dir",
        "tests/attacks/test_squatting.py::test_a_squatted_runtime_directory_keeps_no_daemon_from_its_user",
        "tests/attacks/test_squatting.py::test_a_run_without_a_daemon_finds_the_same_place",
    ),
    "L2 secrets that others may read": (
        "tests/attacks/test_exposed_secrets.py::test_a_password_that_everybody_may_read_is_warned_of",
        "tests/attacks/test_exposed_secrets.py::test_a_group_that_may_read_it_counts",
        "tests/attacks/test_exposed_secrets.py::test_so_do_files_beside_it",
        "tests/attacks/test_exposed_secrets.py::test_a_secret_among_arguments_is_seen_by_everybody",
        "tests/attacks/test_exposed_secrets.py::test_a_registry_and_logs_that_others_may_read",
        "tests/attacks/test_exposed_secrets.py::test_a_secret_in_the_environment_of_the_unit",
    ),
    "L3 a shell evaluates any key of an answer": (
        "tests/attacks/test_evaluated_answers.py::test_a_shell_takes_three_marks_as_they_are",
        "tests/attacks/test_evaluated_answers.py::test_an_agent_of_run_gets_marks_of_run_alone",
        "tests/attacks/test_evaluated_answers.py::test_a_vendor_gets_keys_of_ours_alone",
    ),
    "L4 each follower that leaves writes a traceback": (
        "tests/attacks/test_leaving_clients.py::test_a_client_that_leaves_costs_no_line",
        "tests/attacks/test_leaving_clients.py::test_a_broken_body_is_the_clients_fault",
    ),
    "L5 make install writes through a directory of another": (
        "tests/attacks/test_installing.py::test_nothing_is_put_through_a_directory_that_another_may_write_to",
        "tests/attacks/test_installing.py::test_nothing_is_put_through_a_link_of_another",
        "tests/attacks/test_installing.py::test_nothing_is_put_outside_of_a_staged_tree",
        "tests/attacks/test_installing.py::test_nothing_is_removed_through_a_directory_of_another",
        "tests/attacks/test_installing.py::test_the_commands_refuse_before_they_begin",
        "tests/attacks/test_installing.py::test_no_user_keeps_an_installation",
        "tests/attacks/test_installing.py::test_a_process_that_cannot_be_read_holds_nothing_up",
    ),
}

# Attacks that the review had not tried, and that worked at 6e2b281, when all of its rows were corrected.
LATER: dict[str, tuple[str, ...]] = {
    "a user fills the socket of an agent that root's `run` started, which is ended for its silence": (
        "tests/attacks/test_run_sockets.py",
        "tests/cli/run/test_inbox.py::test_takes_no_descriptor_that_it_is_sent",
    ),
    "names, directories and numbers that a user chose for root": ("tests/attacks/test_places.py",),
    "two users whose hooks hang keep root's from running": (
        "tests/attacks/test_helpers.py::test_two_users_whose_hooks_hang_take_no_place_of_others_hooks",
        "tests/helpers/test_vacancies.py::test_however_many_users_hold_their_places_the_next_one_finds_some",
    ),
    "users whose helpers are stopped delay root's look for what can be restored, one after the other": (
        "tests/attacks/test_admission.py"
        "::test_owners_that_stop_their_helpers_hold_a_look_for_what_can_be_restored_up_once",
    ),
    "a user asks for large answers without end": (
        "tests/attacks/test_admission.py::test_who_asks_for_much_pays_for_much",
    ),
    "a user takes the ids of tasks that another user's agents will have": (
        "tests/attacks/test_places.py::test_no_id_of_a_task_that_another_has_taken_keeps_an_agent_from_being_watched",
    ),
    "users together have more processes hang than there are threads for, so none of others' is read": (
        "tests/attacks/test_hung_reads.py"
        "::test_more_than_there_are_threads_for_keep_no_agent_of_others_from_being_watched",
        "tests/processes/test_reader.py::test_users_of_whom_none_hangs_are_read_whatever_others_do",
    ),
    "reads of a user's processes that take long, and never hang, hold up the event loop": (
        "tests/attacks/test_hung_reads.py::test_reads_that_take_long_and_never_hang_hold_up_nobody",
        "tests/processes/test_reader.py::test_one_of_which_each_read_takes_long_is_not_read_for_a_while",
    ),
    "a user has root's orders wait for a cleanup that its own helper holds up": (
        "tests/attacks/test_waiting_for_cleanup.py",
    ),
    "a user has its process moved out of a unit that root has limited": (
        "tests/systemd/test_scopes.py::test_nobody_gets_an_agent_out_of_what_root_has_limited",
        "tests/agents/test_cgroup_limits.py",
    ),
    "root installs a vendor's hooks in a user's home, where a link leads elsewhere": (
        "tests/attacks/test_places.py::test_root_installs_no_hooks_where_a_users_link_leads",
    ),
    "a user asks for the figures over TCP without end": (
        "tests/control/test_metrics_listener.py::test_a_client_that_asks_without_end_is_answered_a_few_times_a_second",
    ),
    "a chain of thousands of processes takes the scan's time from everybody": ("tests/attacks/test_deep_chains.py",),
    # These at bc51ea4, and at f87b3bd as well.
    "a user that connects and leaves fills the backlog": (
        "tests/attacks/test_admission.py::test_knocking_without_end_locks_nobody_out",
        "tests/control/test_peers.py::test_a_client_that_connects_too_often_is_hung_up_on",
    ),
    "what a request makes the daemon look at is not paid for": (
        "tests/attacks/test_admission.py::test_names_that_are_nobodys_cost_what_they_take",
        "tests/attacks/test_admission.py::test_what_is_no_http_costs_as_a_request_does",
        "tests/control/test_server.py::test_what_a_request_makes_us_look_at_is_paid_for",
        "tests/control/test_server.py::test_each_further_agent_that_is_removed_is_paid_for",
    ),
    "two users' hooks that hang take all places": (
        "tests/attacks/test_admission.py::test_hooks_that_hang_take_no_place_of_roots",
    ),
    "lines of the log that no request caused": (
        "tests/telemetry/test_line_limits.py::test_messages_of_agents_count_for_their_owner",
    ),
    # These at 6db03c2.
    "a member of the group that shares a repository has the owner's helper run a program, or lose work": (
        "tests/attacks/test_shared_repositories.py::test_no_program_runs_that_another_member_of_the_group_names",
        "tests/attacks/test_shared_repositories.py::test_a_repository_that_a_group_may_write_to_is_left_alone",
    ),
    "a restore writes where a link in the trash leads": (
        "tests/attacks/test_shared_repositories.py::test_a_restore_writes_through_no_link_that_lies_in_the_trash",
        "tests/attacks/test_shared_repositories.py::test_whatever_is_put_at_its_place_a_restore_writes_nothing_there",
    ),
    "who puts a twin at a worktree's place has git delete it, by name": (
        "tests/attacks/test_shared_repositories.py::test_whenever_a_twin_is_put_at_its_place_it_stays_as_it_is",
        "tests/attacks/test_shared_repositories.py::test_a_worktree_that_is_locked_at_the_last_moment_comes_back",
    ),
    "a user's process seems to use everybody's places, which are never put in order": (
        "tests/attacks/test_feigned_use.py",
    ),
    "who owns the directory of wheels exchanges one after its hash was compared": (
        "tests/attacks/test_installing.py::test_nobody_exchanges_a_wheel_after_its_hash_was_compared",
    ),
    "a user keeps root from uninstalling by what root's set-uid program is called": (
        "tests/attacks/test_installing.py::test_no_user_keeps_an_installation_by_a_set_uid_program",
    ),
}

# Attacks that held.
HELD: dict[str, tuple[str, ...]] = {
    "registering others' pids, init, kernel threads": (
        "tests/control/routes/test_agents.py::test_processes_that_are_never_agents_are_refused",
        "tests/control/test_server.py::test_two_people_cannot_touch_each_others_agents",
        "tests/processes/test_signals.py::test_threads_of_the_kernel_are_refused",
    ),
    "pids of one's own namespace": (
        "tests/e2e/test_vendor_hooks.py::test_a_pid_of_another_pid_namespace_means_no_agent_here",
    ),
    "markers spoofed both ways": (
        "tests/processes/test_tree.py::test_a_marker_of_another_uid_counts_only_below_the_agent",
        "tests/processes/test_tree_pure.py::test_a_marker_of_another_uid_proves_nothing",
    ),
    "all verbs on others' agents": (
        "tests/e2e/test_two_people.py::test_neither_beats_for_registers_sees_or_kills_the_others",
        "tests/control/test_server.py::test_two_people_cannot_touch_each_others_agents",
    ),
    "datagrams to others' sockets": (
        "tests/e2e/test_two_people.py::test_a_datagram_to_the_others_socket_is_no_beat",
        "tests/cli/run/test_inbox.py::test_another_uid_is_refused_unless_the_agent_runs_as_it_by_now",
    ),
    "control characters, bidi, NUL in every name, note, file name in every view and log": (
        "tests/attacks/test_held.py::test_no_words_of_others_reach_a_terminal_or_the_log_as_they_are",
        "tests/cli/test_list.py::test_words_of_others_cannot_move_the_cursor",
        "tests/telemetry/test_logger.py::test_names_are_dotted_and_every_text_is_one_line",
        "tests/owner/hooks/test_temp_dir.py::test_a_name_that_is_no_utf_8_can_be_told",
    ),
    "notes and commands of others": (
        "tests/e2e/test_two_people.py::test_neither_beats_for_registers_sees_or_kills_the_others",
        "tests/telemetry/test_logger.py::test_environments_and_command_lines_are_dropped",
    ),
    "PostgreSQL password in cmdline, status, errors, logs": (
        "tests/attacks/test_held.py::test_the_password_of_a_database_is_nowhere_to_be_read",
        "tests/registry/test_engines.py::test_a_postgresql_url_means_psycopg_and_hides_its_password",
        "tests/telemetry/test_logger.py::test_long_values_are_cut_and_passwords_in_urls_are_hidden",
    ),
    "temp_dir by link, parent link, `..`, hard link, exchange": (
        "tests/owner/hooks/test_temp_dir.py::test_hostile_paths_are_refused_before_anything_is_touched",
        "tests/owner/hooks/test_temp_dir.py::test_a_link_inside_is_removed_as_a_link",
        "tests/owner/hooks/test_temp_dir.py::test_a_directory_that_becomes_a_link_at_the_worst_moment_leads_nowhere",
        "tests/owner/hooks/test_temp_dir.py::test_swapping_a_directory_for_a_link_never_leads_outside",
        "tests/owner/hooks/test_temp_dir.py::test_another_uids_dir_is_refused",
    ),
    "fsmonitor, hooksPath, filters, textconv, ext::, aliases, pagers in the worktree itself": (
        "tests/attacks/test_held.py::test_no_program_that_a_worktree_names_is_run",
        "tests/owner/hooks/test_worktree.py::test_no_program_of_the_repository_runs",
    ),
    "hostile sources (FIFO, sparse terabyte, YAML bomb, deep JSON, infinite view, trigger)": (
        "tests/attacks/test_held.py::test_a_hostile_registry_hinders_nobody",
        "tests/fuzz/test_sources.py::test_a_registry_is_read_or_refused",
        "tests/e2e/test_sources.py::test_a_hanging_or_invalid_registry_is_reported_once_and_delays_no_other",
        "tests/owner/sources/test_files.py::test_only_a_regular_file_is_read",
    ),
    "slow loris, SCM_RIGHTS, gzip bombs": (
        "tests/control/test_peers.py::test_a_client_that_does_not_finish_its_request_is_cut",
        "tests/control/test_peers.py::test_a_trickle_of_bytes_does_not_move_the_deadline",
        "tests/intake/test_notify_sockets.py::test_many_descriptors_are_all_closed",
        "tests/cli/run/test_inbox.py::test_takes_no_descriptor_that_it_is_sent",
        "tests/attacks/test_held.py::test_a_compressed_body_is_no_bomb",
    ),
    "unread followers": ("tests/control/routes/test_status.py::test_a_follower_that_does_not_read_stops_no_other",),
    "a fake daemon in a squatted directory": (
        "tests/client/test_client.py::test_a_directory_that_others_can_change_is_not_trusted",
        "tests/client/test_client.py::test_a_foreign_uids_daemon_is_not_spoken_to",
        "tests/attacks/test_squatting.py::test_a_squatted_runtime_directory_keeps_no_daemon_from_its_user",
    ),
    "make install under umask 000": ("tests/attacks/test_installing.py::test_a_directory_of_root_and_a_group_is_fine",),
    "hostile pip settings": ("tests/attacks/test_held.py::test_pip_installs_what_the_lock_says_whatever_it_is_told",),
    "rows of hostile hands in the registry": (
        "tests/e2e/test_hostile_rows.py::test_d4_and_h12_hostile_rows_cause_one_error_each_and_no_harm",
    ),
}

# Attacks that the review had not tried, and that held.
HELD_LATER: dict[str, tuple[str, ...]] = {
    "a user holds everybody's kills, lifts the hold on all agents, or has the daemon read its configuration again": (
        "tests/e2e/test_two_people.py::test_neither_beats_for_registers_sees_or_kills_the_others",
        "tests/control/test_server.py::test_two_people_cannot_touch_each_others_agents",
    ),
    "lines and fields of a user's own in the log and in the journal": ("tests/attacks/test_forged_lines.py",),
    "directories that are exchanged while root's agents are ended and cleaned up": (
        "tests/attacks/test_swapped_places.py",
    ),
}
