# ruff: noqa: INP001, T201, S603 - a script of the Makefile, which prints and runs apt-get
"""Finds a Chromium for the tests of the console, or installs one: Debian's package as root, else Playwright's."""

import os
import shutil
import subprocess
import sys

from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL_S = 600


def main() -> int:
    """Install a browser if there is none; without one the tests of the console fail and say what to do."""
    if find_browser() is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        print("== installing Chromium for the tests of the console (apt-get)", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", "chromium"]):
            _run(["apt-get", *command], environment)
    if find_browser() is None:
        print("== installing Chromium for the tests of the console (playwright)", flush=True)
        _run([sys.executable, "-m", "playwright", "install", "chromium"], dict(os.environ))
    if find_browser() is None:
        print("== no Chromium: the tests of the console in a browser fail; install the package chromium")
    return 0


def find_browser() -> str | None:
    """Return the path of the system's Chromium, or of Playwright's."""
    for name in BROWSERS:
        path = shutil.which(name)
        if path is not None:
            return path
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if os.path.exists(path) else None


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        subprocess.run(command, env=environment, capture_output=True, check=False, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        print(f"== {command[0]} did not end within {INSTALL_S} s")


if __name__ == "__main__":
    sys.exit(main())
