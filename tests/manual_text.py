"""Prose of the man pages that no parser knows: what each verb does, and agent-watchdog(7): words, timeline, verdict.

A paragraph with a tab is a term and what it means. Figures are the defaults, read from the configuration.
"""

from datetime import timedelta

from watchdog.config import settings as config
from watchdog.core.verdict import span

_SETTINGS = config.load(None, environ={"HOME": "/nowhere"})
_POLICY = _SETTINGS.policy_of("", "any", ())
_VENDOR = _SETTINGS.policy_of("claude", "any", ())
_HOLD = _SETTINGS.hold
_INTERVAL = _SETTINGS.interval
_CONFIRMED = _POLICY.after + (_POLICY.confirm_sweeps - 1) * _INTERVAL


def _seconds(duration: timedelta) -> str:
    return f"{duration / timedelta(seconds=1):g} s"


# Verb -> what is said after its one line of help. A verb without an entry fails the test of the man pages.
VERBS: dict[str, tuple[str, ...]] = {
    "run": (
        "Starts an agent and stays beside it. Job control, terminal and exit status are as without it; 126 and 127"
        " mean what they mean in shells. It does not change the directory: the agent works where you start it. It"
        " starts its agent without a daemon too, and registers it as soon as there is one.",
        "--worktree, --temp-dir and --task name what is cleaned up after the end. `run` makes the temp dir"
        " (--temp-dir auto), you make the worktree before (git worktree add).",
        "If the agent was killed or stopped through the watchdog, and standard error is a terminal, one line there says"
        " by whose order, why, and where the whole story is.",
    ),
    "beat": (
        "One heartbeat. A call that is not understood is sent as a plain beat: a typing mistake in a hook must not"
        " kill an agent.",
    ),
    "register": (
        "Registers an agent that you start yourself and prints its environment. In the agent's own shell: eval"
        ' "$(agent-watchdog register --name N --pid $$)"',
    ),
    "list": (
        "The most urgent agents first, below one line that sums up and names what holds back every kill (a hold, a"
        " doubt, an unusable registry). Each line has status, verdict (or `needs a person`), silence and its"
        " limit, and why, with the reason of a failed cleanup. Ages are current; a verdict that depends on"
        " time alone is at most one sweep interval old.",
    ),
    "status": (
        "One verdict on the watchdog itself, what needs attention and what to do, then figures and holds. Exit"
        " status: 0 fine, 1 attention needed, 69 no daemon.",
    ),
    "why": (
        "One agent's story in the order of time, then what would change the verdict and what to do, then the"
        " evidence: each signal, each process and how it ended.",
    ),
    "events": ("--after ID continues where you stopped, also over restarts.",),
    "kill": (
        "TERM, grace, KILL, proof, cleanup. Waits for the proof, then for the cleanup: 30 s at most, for another"
        " user's agent 5 s. From within an agent's tree `all`, `tag:X` and `type:X` are only shown, unless --go is"
        " given (`stop` likewise).",
    ),
    "stop": (
        "For an agent that is to continue later. It is asked to exit after its current tool call, by the"
        " stop command of the program that lists it (hcom stop NAME), and by its exit keys in its pane (tmux,"
        " kitty, WezTerm; it then has 3 s). What is still running is killed as by `kill` (KILL follows TERM"
        " in 5 s after"
        " typed keys). The outcome is `stopped`, the worktree stays, and the answer says how its conversation is"
        " resumed (Claude Code, Codex, Antigravity).",
    ),
    "cancel": (
        "Stops the agents that work on a task; the task becomes `cancelled`, also if the daemon dies meanwhile.",
    ),
    "remove": ("Closes the row of an agent whose process is gone. Refuses a living agent.",),
    "purge": (
        "Moves the files of the conversation of an ended agent to the trash beside them (.agent-watchdog-trash-UID/"
        " in its program's directory, which only you empty); it can no longer be resumed. Without --yes it shows"
        " them.",
    ),
    "hold": (
        "No kills, until `unhold` or for --for. Without a target (root, admins) the daemon kills no agent by"
        " itself. Before the first signal it calls an open order off; after it, the command says that it is too late.",
    ),
    "unhold": (
        "Lifts holds; without a target the one on all agents, and those that the daemon set because it"
        " doubts itself or the host, which it names.",
    ),
    "reap": (
        "Cleans up now what dead agents left behind (the daemon does so every ten minutes). --dry-run shows"
        " what, and why.",
    ),
    "restore": (
        "--dry-run says where the worktree would go. Run it within the repository for another daemon's trash.",
    ),
    "install-hooks": (
        "Supported are claude, codex, gemini and opencode. Agents known only from these hooks are reported, and not"
        " killed, until a [[policy]] gives their type a ladder with `kill`.",
    ),
    "mcp": ("Needs the extra `mcp`. The destructive tools take one agent or one task, never a group.",),
    "reload": ("Waits for the outcome. If the file is not adopted: exit status 78 and each fault.",),
    "doctor": (
        "Changes nothing and works without a daemon. Exit status: 0 no fault, though perhaps warnings; 1 a fault.",
    ),
}

WORDS = (
    "agent\ta program that works for a person by itself, with all processes that it starts: its tree. It has a"
    " name, an id and one owner (a uid).",
    "beat\ta message from the agent: it makes progress. With a state: working, idle, waiting (for a human), blocked"
    " (by something else), done.",
    "promise\tan agent that has sent a beat (READY=1, STATUS= or STOPPING=1 alone is none), or was started with"
    " --stall-after, has promised to send more. Only silence against a promise counts.",
    "silence\tthe time without a beat while the daemon was watching. Clock steps, suspend, a stopped or crashed"
    " daemon make no agent silent.",
    "after\tthe silence that is too long: --stall-after, else after_seconds of its policy"
    f" ({_seconds(_POLICY.after)}; {span(_VENDOR.after)} for claude, codex, gemini, opencode and agy).",
    "activity\twhat the daemon sees of an agent from outside. It delays a verdict and renews no promise.",
    "lease\tthe agent asked to be silent for a time (--silent-for, a tool with a limit). It outlives later"
    " beats; --silent-for 0s ends it. The maximum is wait_limit.",
    "ladder\tthe steps of a policy: warn, nudge, stop, kill.",
    "hold\tno kills: an operator's (`hold`), or the daemon's own while it doubts itself or the host.",
    "order\ta request to kill or stop one agent, committed before it is carried out.",
    "proved\tevery process of the tree was seen to be gone, by its pidfd and a last look. Cleanup begins only then.",
    f"limits\tstart_limit {span(_POLICY.start_limit)}, busy_limit {span(_POLICY.busy_limit)}, wait_limit"
    f" {span(_POLICY.wait_limit)}, prompt_limit {span(_POLICY.prompt_limit)}, progress_limit"
    f" {span(_POLICY.progress_limit)}, linger {span(_POLICY.linger)}; the keys are those of agent-watchdog.toml(5)"
    " with _seconds.",
)

TIMELINE = (
    "With the defaults. Each moment is one event in the log and in `why`.",
    "0 s\tthe last heartbeat",
    f"{_seconds(_POLICY.after)}\tagent.late: the first look that finds it silent for too long",
    f"{_seconds(_CONFIRMED)}\tagent.stalled: the second look, at least {_seconds(0.9 * _INTERVAL)} later"
    f" ({(_POLICY.after + 0.9 * _INTERVAL).total_seconds():g} to"
    f" {(_POLICY.after + 1.9 * _INTERVAL).total_seconds():g} s), finds the same, and no activity was seen for a"
    " minute (half of `after`): confirmed",
    f"{_seconds(_CONFIRMED)}\tkill.requested: the order is committed; sockets are drained, and `run` gets 0.75 s to"
    " pass on what it holds: a heartbeat still calls the order off",
    f"{_seconds(_CONFIRMED)}\tkill.signal_sent: TERM, then CONT, to the main process, through its pidfd",
    f"{_seconds(_CONFIRMED + _POLICY.grace / 2)}\tkill.signal_sent: TERM, then CONT, to the rest of the tree (at"
    " once when the main process has ended)",
    f"{_seconds(_CONFIRMED + _POLICY.grace)}\tkill.finished: what still lives is frozen in its own cgroup, or"
    " stopped, until a look finds nothing new; then KILL; one more look: proved",
    "then\tcleanup.hook_finished: a clean worktree goes to the trash and git forgets it; a dirty one stays, with"
    " the reason",
    "then\tcleanup.hook_finished: the temp dir is removed",
    'then\tagent.ended: the task becomes failed ("Agent killed: ..."; completed if the agent had said `done`'
    " before), and last of all the agent's own row is closed",
    f"What cannot be killed within {_seconds(_POLICY.verify)} of KILL is `unkillable`: d_state, frozen, traced (a"
    " debugger holds it; its process is named), not_permitted, protected, or outrun (its processes replace"
    " themselves as fast as they are found). That is reported, tried again with growing pauses and as soon as it"
    " goes, and nothing of it is cleaned up.",
    "An agent that exits, or is killed by someone else, needs none of this: its pidfd shows it within a second.",
    f"The daemon kills at most {_SETTINGS.kill.max_per_minute} living agents a minute by itself. Neither that nor"
    " its doubts bind what an operator orders.",
)

LADDER = (
    'A [[policy]] (or [kill]) may put softer steps before the kill, for example ladder = ["warn", "nudge", "stop",'
    ' "kill"].',
    "warn\tit is reported (agent.told)",
    "nudge\ta line is typed into the agent's own tmux pane, or nudge_command is run",
    "stop\tit is asked to end by itself, and its exit_keys are typed",
    "kill\tthe order as above",
    f"Each step has its pause (nudge_pause_seconds and so on, {span(_POLICY.stop_pause)}), is taken once, also over"
    " a restart, and is held back by whatever holds back a kill; `warn` is always reported. At the first step that"
    " helps, a heartbeat, the ladder ends (agent.obeyed). A ladder without `kill` kills no agent.",
    "An agent that has not started yet is never nudged and gets no exit keys: its dialog may take Enter for"
    " a yes. No key is typed over a dialog. A draft in the prompt of Claude Code, Codex, Gemini CLI or opencode keeps"
    " a nudge away. Before exit keys it is cleared by Ctrl-C, and if it stays, no keys are typed.",
)

VERDICT = (
    "Each look takes the first line that fits. `why` names it, with every signal, its age and its source. An agent"
    " that another daemon of this host watches is not judged here, but for `gone`.",
    "1 gone\tthe main process is proved absent. What is left of its tree is killed and cleaned up.",
    "2 unknown\tthe look failed, or its only beat is a file that cannot be read, or lies on a full disk (up to"
    " wait_limit). Nothing is done; it is reported once.",
    "3 starting\tno pid (nor a process with its mark) and no beat yet, or a promise and no beat yet (start_limit,"
    " and up to busy_limit more while activity is seen), unless its pane asks a person or it was not prompted yet"
    " (line 6). After that: failed to start, killed.",
    "4 expired\t--ttl is over; agent.expires_soon comes a tenth of it before, five minutes at most. Killed.",
    "5 lingering\tit said `done` longer than `linger` ago. Killed.",
    "6 waiting\tNothing is done. One of: idle, or waiting for a human (no limit; agent.needs_human once after"
    " prompt_limit, agent.human_answered when it is over); idle while its subagents or background tasks run, for"
    " wait_limit of silence (at least its own limit); silent or not started, and its tmux pane asks a person; not"
    " started, and not prompted yet; blocked, on a lease or in a tool within its limit (wait_limit); held by a"
    " debugger, or stopped from its terminal (wait_limit).",
    "7 healthy\tno promise; or silent for less than `after`, and its progress, where it reports one, moved within"
    " progress_limit. Nothing is done.",
    "8 late\tsilent for too long, but either fewer than confirm_sweeps looks in a row have found it so, or activity"
    " was seen. Activity is accepted for busy_limit beyond its limit: by default an agent is stalled"
    f" {(_POLICY.after + _POLICY.busy_limit) / timedelta(minutes=1):g} minutes after its last beat at the latest,"
    " even while a child agent works on. Reported once.",
    "9 stalled\teverything else. The steps of its policy's ladder follow, by default the kill.",
    "An agent that beats and reports no human, but whose tmux pane shows a permission prompt, keeps its verdict;"
    " agent.needs_human and agent.human_answered come for it too. Its pane is looked at four times in one"
    " prompt_limit. An agent that is silent, or has not beaten yet (no hook runs before a folder is trusted), is"
    " looked at in each sweep, and waits for a person while its pane shows a dialog. A program that has not beaten"
    " yet also waits while no one has prompted it: its command line holds no prompt, or its pane shows its prompt"
    " (Codex and opencode run no hook before the first one).",
)

ACTIVITY = (
    "Each of these delays the verdict and renews nothing: 5 % of a core used by the tree, including children that"
    " lived for a moment, or waited for half of the time and not got (an overloaded host, a quota); 50 kB/s read or"
    " written by it; growth of --transcript and --log; new words in its own tmux pane (the owner's helper looks at"
    " both); a child agent at work. Only what was seen since it fell silent counts, and for half of `after`. What"
    " is missing is no evidence, for or against.",
)

DOUBTS = (
    "Before it kills an agent for silence the daemon checks itself and the host.",
    "after a gap\tAfter a gap in its own ticks, a suspend, a restart, or when a beat file can be read again, every"
    " agent has one fresh `after`, once in one silence. After a gap, a suspend or a set clock no agent is killed"
    " for two intervals.",
    f"pressure\tWhile the host is overloaded it holds: processes waited for a CPU in {_HOLD.cpu_pressure_percent:g} %"
    " of the time (hold.cpu_pressure_percent) and the load is two a core, or memory is short.",
    f"mass stall\tWhen many fall silent together, or do not start ({_HOLD.mass_stall_count} agents and half of all),"
    " it holds. Agents that beat at different times become late one after another when all lose what they need. So"
    " before the daemon kills a user's agent for silence, it looks at that user's other agents: one that should have"
    " beaten by its own rhythm since this agent fell silent, and has not, counts as silent with it. Are"
    f" {_HOLD.mass_stall_count} agents silent, and half of all that should have beaten, it is a mass stall. An agent"
    " that rests, is on a lease, or cannot be heard says nothing either way. The first agent that is late therefore"
    " waits until more than half of the others have beaten since it fell silent; the timeline above is that of an"
    " agent alone, or among others that beat more often than every minute. After an outage, each agent may take as"
    " long to come back as it usually takes between two beats.",
    "limit\tA hold is logged as hold.started and hold.ended. It delays each agent's kill for hold.max_seconds"
    f" ({span(timedelta(seconds=_HOLD.max_seconds))}) at most, or until `agent-watchdog unhold`.",
    "stopped on purpose\tAn agent that a debugger outside its tree holds, or that was stopped from its terminal"
    ' (Ctrl-Z, or its shell has said "Stopped"), is reported (agent.waiting) and has a fresh `after` when it'
    " continues. SIGSTOP without a terminal is a stall.",
)

CONCEPTS = (
    ("WORDS", WORDS),
    ("TIMELINE OF A SILENT AGENT", TIMELINE),
    ("LADDER", LADDER),
    ("VERDICT", VERDICT),
    ("ACTIVITY", ACTIVITY),
    ("DOUBTS OF THE DAEMON", DOUBTS),
)
