"""SyncGroup with compiled decoding, for members that send no assignments: all but the leader.

The group decides exactly as for a request that `sync_group` decodes. What the kernel does not read, and requests that
are refused before their group is resolved, are left to `sync_group`.
"""

from typing import Any

from klamm.coordinator.core.shard import Decision, Now
from klamm.coordinator.groups import GroupShard, kernels
from klamm.coordinator.groups.classic.syncing import FollowerSync
from klamm.model.acls import AclOperation, AclResourceType
from klamm.model.errors import KlammError
from klamm.net import Channel
from klamm.protocol.codec import encode
from klamm.protocol.messages.sync_group import SyncGroupResponse
from klamm.server.handlers.groups.rebalance_replies import SYNC_FLEXIBLE_SINCE, encode_sync_reply
from klamm.server.handlers.groups.sync_group import check_request
from klamm.server.requests.replies import build_frame, count_errors
from klamm.server.services import Services

API_KEY = 14


def handle(
    services: Services,
    channel: Channel,
    view: memoryview,
    start: int,
    end: int,
    version: int,
    correlation_id: int,
) -> bool:
    """Hand a sync to its group; return False for one that `sync_group` has to decode."""
    parts = kernels.read_sync(view[start:end], version)
    if parts is None:
        return False
    request = FollowerSync(*parts)
    # `sync_group` encodes the refusal.
    if check_request(request, version):
        return False
    access = services.access
    if access is not None and not access.allows_quietly(
        channel, AclOperation.READ, AclResourceType.GROUP, request.group_id
    ):
        return False
    # None while the shard is loading or led by another broker: `sync_group` has the errors for that.
    active = services.coordinators.groups.serving(request.group_id)
    if active is None:
        return False
    reply = _SyncReply(services, channel, correlation_id, version)

    def decide(shard: GroupShard, now: Now) -> Decision:
        return shard.sync(request, now, reply)

    active.run(decide, reply)
    return True


class _SyncReply:
    """Answers one SyncGroup with an assignment or an error."""

    __slots__ = ("_correlation_id", "_services", "_slot", "_version")

    def __init__(self, services: Services, channel: Channel, correlation_id: int, version: int) -> None:
        self._services = services
        # Before the decision: it may answer at once.
        self._slot = channel.defer()
        self._correlation_id = correlation_id
        self._version = version

    def __call__(self, response: Any) -> None:
        """Answer with a response or a KlammError."""
        if isinstance(response, KlammError):
            response = SyncGroupResponse(error_code=response.code)
        if response.error_code:
            count_errors(self._services.request_times.by_key[API_KEY], response)
            body = encode(response, self._version)
            self._slot.send((build_frame(self._correlation_id, body, flexible=self._version >= SYNC_FLEXIBLE_SINCE),))
        else:
            self._slot.send((encode_sync_reply(self._correlation_id, self._version, response),))
