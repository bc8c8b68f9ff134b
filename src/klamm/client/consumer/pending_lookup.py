"""A lookup that a deserializer waits for, a schema's say: it runs in a thread, and outlives a poll that timed out."""

from __future__ import annotations

import asyncio

from klamm.client.serde import LookupNeeded


class PendingLookup:
    """At most one lookup of a consumer."""

    def __init__(self) -> None:
        self._running: asyncio.Future[object] | None = None

    async def wait(self, needed: LookupNeeded, timeout_s: float) -> bool:
        """Wait for the lookup; False after `timeout_s`, and the next call waits for the same. Raises its error."""
        if self._running is None:
            self._running = asyncio.get_running_loop().run_in_executor(None, needed.look_up)
        running = self._running
        # A turn of the loop even without time left, so that polls of 0 s get the result once it is there.
        done, _ = await asyncio.wait([running], timeout=max(timeout_s, 0.001))
        if not done:
            return False
        if self._running is running:
            self._running = None
        running.result()
        return True
