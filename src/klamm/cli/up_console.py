"""The console of `klamm up`: pages over the node, in a process beside it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Sequence
from typing import Final

from klamm.cli.child_service import HOST, ChildService

CONSOLE_PORT: Final = 8080
_MODULES: Final = ("argon2", "httptools", "jinja2", "uvicorn")
"""What the console imports from the extra `console`."""


def is_console_installed() -> bool:
    """Whether the extra `console` is installed; nothing of it is imported."""
    return all(importlib.util.find_spec(name) is not None for name in _MODULES)


class ConsoleProcess(ChildService):
    """The process of a console, without a login: it is reached from this machine only."""

    def __init__(self, data: str | None, services: ChildService | None = None) -> None:
        """Samples are kept by the folder of the node's data, in memory only without one (None).

        `services` are started before: schemas are those of their registry.
        """
        super().__init__({"console": CONSOLE_PORT})
        self._data = data
        self._services = services

    def arguments(self, bootstrap: str, descriptors: Sequence[int]) -> list[str]:
        """Return the arguments of `klamm console`."""
        (descriptor,) = descriptors
        kept = ["--no-history"] if self._data is None else ["--data", history_folder(self._data)]
        registry = None if self._services is None else self._services.urls.get("registry")
        return [
            *("console", "--host", HOST, "-b", bootstrap, *kept, "--log-level", "error"),
            *(() if registry is None else ("--registry", registry)),
            *("--listen-fd", str(descriptor)),
        ]


def history_folder(data: str) -> str:
    """Return where the console of a node keeps samples: one for each folder of data, and not inside of it."""
    home = os.path.join(os.path.expanduser("~"), ".local", "state")
    root = os.environ.get("XDG_STATE_HOME") or home
    digest = hashlib.sha256(os.path.abspath(data).encode()).hexdigest()[:12]
    return os.path.join(root, "klamm", "up", digest)
