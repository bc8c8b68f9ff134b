"""`python -m compat [--broker kafka|klamm] [pytest options]`: check the machine, fetch what is missing, run."""

import sys
from pathlib import Path

import pytest

from compat import toolchain
from ecosystem import maven

TOOLS = ("mvn", "java", "javac", "go", "node", "npm", "kcat")


def main() -> int:
    try:
        toolchain.require(*TOOLS)
        toolchain.java_classes()
        toolchain.js_program()
        toolchain.go_program()
        toolchain.go_logins()
        toolchain.spark_jars()
        maven.class_path("connect")
    except toolchain.ToolMissing as problem:
        print(f"compat: {problem}", file=sys.stderr)
        return 1
    folder = str(Path(__file__).resolve().parent)
    # Two: most tests wait for the start of a JVM, which uses one core.
    defaults = ["-n", "2", "-p", "no:randomly", "--timeout=300", "--durations=10"]
    return int(pytest.main([folder, *defaults, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
