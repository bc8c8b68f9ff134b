"""A bank that runs while you watch: `make demo`.

One node, customers who send transactions keyed by account (some are nonsense), an account service and a logging service
that each see every one of them, and a pipeline on Spark that keeps balances, spend per minute, suspicious transactions,
dead letters and a lake. Ctrl-C closes the bank; then everything is computed again from the raw topic, in plain Python,
and compared: equal, or exit code 1. Without a terminal it closes after a minute. Needs Java 17 or newer.

    python examples/demo.py [--seconds N] [--rate N] [--seed N] [--keep]
"""

import sys

sys.dont_write_bytecode = True

from live_bank.app import main  # noqa: E402 - nothing is left in the tree

if __name__ == "__main__":
    sys.exit(main())
