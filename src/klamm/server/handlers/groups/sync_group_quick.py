"""SyncGroup, the short way: a member that does not lead gets its share, or waits for its leader to say what it is.

Whatever is unusual, and every refusal, takes the long way in `sync_group`, which gives the same answer to the byte.
"""

from typing import Any

from klamm.coordinator.core.shard import Decision
from klamm.coordinator.groups import kernels
from klamm.model.errors import KlammError
from klamm.net import Channel
from klamm.protocol.codec import encode
from klamm.protocol.messages.sync_group import SyncGroupResponse
from klamm.server.handlers.groups.rebalance_answers import SYNC_FLEXIBLE_SINCE, sync_answer
from klamm.server.requests.replies import frame_of
from klamm.server.services import Services

CHECKED_SINCE = 5


def handle(
    services: Services,
    channel: Channel,
    view: memoryview,
    start: int,
    end: int,
    version: int,
    correlation_id: int,
) -> bool:
    """Answer the member or let it wait, if that is all; False leaves the request untouched for the long way."""
    sync = kernels.read_sync(view[start:end], version)
    if sync is None or (version >= CHECKED_SINCE and None in sync[4:]):
        return False
    active = services.coordinators.groups.serving(sync[0])
    if active is None:
        return False
    reply = _Reply(correlation_id, version)
    decided = active.shard.sync_plainly(*sync, reply)
    if decided is False:
        return False
    reply.slot = channel.defer()
    if decided is not True:
        active.carry_out(Decision(replies=((reply, decided),)), active.now())
    return True


class _Reply:
    """Answers one SyncGroup when the leader has assigned, or the wait is in vain."""

    __slots__ = ("_correlation_id", "_version", "slot")

    def __init__(self, correlation_id: int, version: int) -> None:
        self._correlation_id = correlation_id
        self._version = version
        self.slot: Any = None

    def __call__(self, response: Any) -> None:
        """Answer, with a response or a KlammError."""
        if isinstance(response, KlammError):
            response = SyncGroupResponse(error_code=response.code)
        if response.error_code:
            body = encode(response, self._version)
            self.slot.send((frame_of(self._correlation_id, body, flexible=self._version >= SYNC_FLEXIBLE_SINCE),))
        else:
            self.slot.send((sync_answer(self._correlation_id, self._version, response),))
