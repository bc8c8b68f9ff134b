"""`klamm up --registry --rest`: a schema registry and a REST proxy over the node, in one process beside it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Final

from klamm.cli.child_service import HOST, ChildService
from klamm.cli.command_errors import CommandRefusal

REGISTRY_PORT: Final = 8081
REST_PORT: Final = 8082
_MODULES: Final = ("uvicorn", "httptools", "fastavro", "jsonschema_rs")
"""What both services import from the extras `http` and `registry`."""


class ServicesProcess(ChildService):
    """The process of a registry, a REST proxy, or both."""

    def __init__(self, *, registry: bool, rest: bool, log_level: str) -> None:
        """One or both; refused where packages are missing."""
        for module in _MODULES:
            if importlib.util.find_spec(module) is None:
                raise CommandRefusal(f"{module} is not installed: pip install 'klamm[http,registry]'")
        ports = {"registry": REGISTRY_PORT} if registry else {}
        super().__init__(ports | {"rest": REST_PORT} if rest else ports)
        self._command = "services" if registry and rest else "registry" if registry else "rest"
        self._log_level = log_level
        self.settings_file: str | None = None
        """The client settings with which the services log in to the cluster."""

    def arguments(self, bootstrap: str, descriptors: Sequence[int]) -> list[str]:
        """Return the arguments of `klamm services`, `klamm registry` or `klamm rest`."""
        options = ("--listen-fd", "--rest-listen-fd")
        words = [self._command, "--host", HOST, "-b", bootstrap, "--log-level", self._log_level]
        for option, descriptor in zip(options, descriptors, strict=False):
            words += [option, str(descriptor)]
        # A file: the arguments of a process are visible to other users of the machine, and it has a password.
        return words if self.settings_file is None else [*words, "--command-config", self.settings_file]
