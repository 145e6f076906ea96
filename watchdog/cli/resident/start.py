"""Where `agent-watchdog run` goes on, in an interpreter without `site`: executed by its path, see `cli.main`."""

import sys

sys.path.insert(0, __file__.rpartition("/watchdog/cli/")[0])

from watchdog.cli.run import main

sys.exit(main(sys.argv[1:]))
