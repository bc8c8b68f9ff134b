"""Finds the Java that Spark runs on, so that a missing one is reported before Spark starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Final

from klamm.model.errors import ConfigError

OLDEST: Final = 17
_ADVICE: Final = "install one (apt install openjdk-17-jre-headless, brew install openjdk@17, ...) or set JAVA_HOME"


def find_java() -> str:
    """Return the java that Spark will run on; ConfigError when it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    # Spark's launcher (bin/spark-class) prefers JAVA_HOME to the path in the same way.
    path = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if path is None:
        raise ConfigError(f"Spark needs Java {OLDEST} or newer and there is no java on the path: {_ADVICE}")
    try:
        output = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"Spark needs Java {OLDEST} or newer and {path} does not run ({error}): {_ADVICE}") from None
    # `java -version` prints to stderr, `java --version` of newer releases to stdout.
    major = parse_version(output.stderr + output.stdout)
    if major is None or major < OLDEST:
        raise ConfigError(f"Spark needs Java {OLDEST} or newer and {path} is version {major or 'unknown'}: {_ADVICE}")
    return path


def parse_version(output: str) -> int | None:
    """Return the major version in the output of `java -version`: 17 of "17.0.15", 8 of "1.8.0_412"."""
    # Java 8 and older count from 1: their major version is the second number.
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None
