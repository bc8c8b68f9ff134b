"""The clock, randomness, disk, threads and sockets of a node, in one object that a simulation can replace.

Beside these a node uses only its event loop: `loop.time`, timers, `run_in_executor`, `create_connection`. Nothing that
runs in a node uses `time`, `random`, `uuid`, `os` or `threading` for anything that can differ between runs.
"""

import uuid
from dataclasses import dataclass, field
from random import Random

from klamm.model.clock import Clock, SystemClock
from klamm.net.sockets import Sockets
from klamm.storage import Disk
from klamm.storage.thread_pools import Threads, real_threads


@dataclass(frozen=True, slots=True)
class Environment:
    """Clock, randomness, disk, threads and listening sockets; without arguments the real ones."""

    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=Random)
    """Spreads load and election timeouts; never used for secrets."""
    disk: Disk = field(default_factory=Disk)
    threads: Threads = real_threads
    sockets: Sockets = field(default_factory=Sockets)
    seeded: bool = False
    """Whether ids come from `random` too; otherwise from the operating system."""

    def new_uuid(self) -> uuid.UUID:
        """Return a random id."""
        return uuid.UUID(bytes=self.random.randbytes(16), version=4) if self.seeded else uuid.uuid4()
