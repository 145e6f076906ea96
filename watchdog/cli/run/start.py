"""Continues `agent-watchdog run` in an interpreter without `site`: executed by path from `cli.main`.

Tests: tests/cli/run/test_wrapper.py.
"""

import sys

sys.path.insert(0, __file__.rpartition("/watchdog/cli/")[0])

from watchdog.cli.run.wrapper_signals import end_at_interrupt

end_at_interrupt()

from watchdog.cli.run.wrapper import main  # noqa: E402  Ctrl-C may come meanwhile

sys.exit(main(sys.argv[1:]))
