"""Producer ids, in blocks from the controller, so that most are allocated without a request."""

import asyncio
from collections.abc import Callable

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from klamm.server.controller.channel import ControllerChannel


class ProducerIds:
    """Allocates each id once; the rest of a block that a crash loses is never used."""

    def __init__(self, node_id: int, controller: ControllerChannel, broker_epoch: Callable[[], int]) -> None:
        self._node_id = node_id
        self._controller = controller
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()
        self._broker_epoch = broker_epoch

    async def allocate(self) -> int:
        """Return an id that no producer has had before."""
        await self.ensure()
        return self.take()

    async def ensure(self) -> None:
        """Fetch a block if no id is left."""
        if self._next >= self._end:
            async with self._lock:
                # Another task may have fetched a block while this one waited for the lock.
                if self._next >= self._end:
                    await self._fetch_block()

    def take(self) -> int:
        """Return an id that no producer has had before, from the current block; call `ensure` first."""
        if self._next >= self._end:
            raise KlammError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no producer id is left in the block")
        allocated = self._next
        self._next += 1
        return allocated

    async def _fetch_block(self) -> None:
        request = AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        response = await self._controller.ask(request)
        if response.error_code:
            raise KlammError(ErrorCode(response.error_code))
        # A block is fetched only when the previous one is used up, so nothing is lost here.
        self._next = response.producer_id_start
        self._end = response.producer_id_start + response.producer_id_len
