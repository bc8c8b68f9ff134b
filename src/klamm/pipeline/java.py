"""Spark runs on Java: find it before anything else is tried, or say in one sentence what to install."""

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
    """The java that Spark will run on; ConfigError says what to install when there is none, or only an old one."""
    home = os.environ.get("JAVA_HOME")
    path = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if path is None:
        raise ConfigError(f"Spark needs Java {OLDEST} or newer and there is no java on the path: {_ADVICE}")
    try:
        told = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"Spark needs Java {OLDEST} or newer and {path} does not run ({error}): {_ADVICE}") from None
    found = parse_version(told.stderr + told.stdout)
    if found is None or found < OLDEST:
        raise ConfigError(f"Spark needs Java {OLDEST} or newer and {path} is version {found or 'unknown'}: {_ADVICE}")
    return path


def parse_version(words: str) -> int | None:
    """The major version `java -version` tells: 17 of "17.0.15", 8 of "1.8.0_412"."""
    match = re.search(r'version "(?:1\.)?(\d+)', words)
    return int(match[1]) if match else None
