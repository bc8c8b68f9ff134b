"""`python -m ecosystem [--broker kafka|klamm] [--quick] [--record] [pytest options]`: check the machine, fetch, run."""

import sys
from pathlib import Path

import pytest

from compat import toolchain
from ecosystem import results

TOOLS = ("mvn", "java", "javac", "go", "kcat")


def main() -> int:
    if sys.argv[1:] == ["--table"]:
        results.write_page()
        return 0
    try:
        toolchain.require(*TOOLS, what="make ecosystem")
        toolchain.kafka_jars()
    except toolchain.ToolMissing as problem:
        print(f"ecosystem: {problem}", file=sys.stderr)
        return 1
    folder = str(Path(__file__).resolve().parent)
    return int(pytest.main([folder, "-p", "no:randomly", "--timeout=900", "--durations=10", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
