"""Finds free ports for nodes that listen later, and claims them so that no other search returns them meanwhile.

The ports of a local cluster are chosen seconds before its nodes listen on them. Until then the system considers them
free, so a second search in this process, or in a worker of the same test run, would return them again. Each process
therefore locks one byte per port in a shared file; the system releases the locks when the process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
import threading
from collections.abc import Sequence

from klamm.model.errors import ConfigError

PORTS_FREE = range(18_000, 32_000)
"""The ports to choose from: below those of outgoing connections."""
CLAIMS_MAX = 4096
"""The limit of claims of a process; beyond it the oldest are released, so that a long test run finds more."""


class PortClaims:
    """The ports that this process has claimed, locked against other processes of the same user."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None
        self._ports: dict[int, None] = {}
        self._changing = threading.Lock()

    def claim(self, host: str, port: int) -> bool:
        """Claim a port; return False if it is in use or claimed by any process."""
        with self._changing:
            if port in self._ports or not self._lock(port):
                return False
            # Tested while it is locked: a port whose claim was released may still have a listener.
            if not _is_bindable(host, port):
                self._unlock(port)
                return False
            self._ports[port] = None
            if len(self._ports) > CLAIMS_MAX:
                oldest = next(iter(self._ports))
                del self._ports[oldest]
                self._unlock(oldest)
            return True

    def release(self, ports: Sequence[int]) -> None:
        """Release claimed ports."""
        with self._changing:
            for port in ports:
                del self._ports[port]
                self._unlock(port)

    def _lock(self, port: int) -> bool:
        if self._fd is None:
            # Without a writable folder for temporary files only the claims of this process count.
            with contextlib.suppress(OSError):
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if self._fd is None:
            return True
        try:
            # A record lock may be past the end of the file, which stays empty.
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        return True

    def _unlock(self, port: int) -> None:
        if self._fd is not None:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, port)


def _is_bindable(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


_claims = PortClaims(os.path.join(tempfile.gettempdir(), f"klamm-ports-{os.getuid()}"))


def free_ports(host: str, count: int, among: range = PORTS_FREE) -> list[int]:
    """Return ports without a listener that no other search returns while this process runs."""
    ports: list[int] = []
    # At random: searches that all begin with the first port would collide.
    for port in random.sample(among, len(among)):
        if _claims.claim(host, port):
            ports.append(port)
        if len(ports) == count:
            return sorted(ports)
    _claims.release(ports)
    raise ConfigError(f"no {count} free ports on {host}")


def claim_or_free(host: str, port: int) -> int:
    """Return the port if it is free, else another one; no other search returns it while this process runs."""
    return port if _claims.claim(host, port) else free_ports(host, 1)[0]


def usual_or_free(host: str, port: int) -> int:
    """Return the port if it has no listener, else another one; for a listener that opens at once, without a claim."""
    return port if _is_bindable(host, port) else free_port(host)


def free_port(host: str) -> int:
    """Return a port without a listener, and without a claim."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        number: int = probe.getsockname()[1]
        return number


def free_port_row(host: str, count: int, among: range = PORTS_FREE) -> range:
    """`free_ports` for consecutive ports, as `klamm up --port N --nodes 3` uses."""
    firsts = among[: len(among) - count + 1]
    for first in random.sample(firsts, len(firsts)):
        row = range(first, first + count)
        claimed: list[int] = []
        for port in row:
            if not _claims.claim(host, port):
                break
            claimed.append(port)
        if len(claimed) == count:
            return row
        _claims.release(claimed)
    raise ConfigError(f"no {count} free ports in a row on {host}")
