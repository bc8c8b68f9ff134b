"""OffsetCommit with compiled decoding and encoding, for requests of the usual form.

The group decides exactly as for a request that `offset_commit` decodes. What the kernel does not read, and partitions
the cluster does not have, are left to `offset_commit`.
"""

from typing import Any

from klamm.coordinator.core.shard import Decision, Now
from klamm.coordinator.groups import GroupShard, kernels
from klamm.coordinator.groups.offset_requests import CommitTopic, OffsetCommit
from klamm.model.acls import AclOperation, AclResourceType
from klamm.model.errors import KlammError
from klamm.net import Channel
from klamm.protocol.codec import encode
from klamm.server.handlers.offsets.offset_commit import (
    TOPIC_IDS_SINCE,
    RequestedTopic,
    build_response,
    refuse_all,
    resolve_topics,
)
from klamm.server.requests.replies import build_frame, count_errors
from klamm.server.services import Services

API_KEY = 8
FLEXIBLE_SINCE = 8


def handle(
    services: Services,
    channel: Channel,
    view: memoryview,
    start: int,
    end: int,
    version: int,
    correlation_id: int,
) -> bool:
    """Hand a commit to its group; return False for one that `offset_commit` has to decode."""
    parts = kernels.read_commit(view[start:end], version)
    if parts is None:
        return False
    group_id, generation, member_id, instance_id, requested = parts
    access = services.access
    if access is not None and not access.allows_quietly(channel, AclOperation.READ, AclResourceType.GROUP, group_id):
        return False
    # None while the shard is loading or led by another broker: `offset_commit` has the errors for that.
    active = services.coordinators.groups.serving(group_id)
    if active is None:
        return False
    topics, unknown = resolve_topics(services.image.topics, requested, by_id=version >= TOPIC_IDS_SINCE)
    # A topic without partitions is missing from the answer, for which the kernel has no form.
    if unknown or len(topics) != len(requested):
        return False
    if access is not None:
        for name, _, _ in topics:
            if not access.allows_quietly(channel, AclOperation.READ, AclResourceType.TOPIC, name):
                return False
    commit = OffsetCommit(group_id, generation, member_id, instance_id, topics)
    reply = _CommitReply(services, channel, correlation_id, version, requested, topics)

    def decide(shard: GroupShard, now: Now) -> Decision:
        return shard.commit_offsets(commit, version, now, reply)

    active.run(decide, reply)
    return True


class _CommitReply:
    """Answers one OffsetCommit, usually that every offset is stored."""

    __slots__ = ("_correlation_id", "_requested", "_services", "_slot", "_topics", "_version")

    def __init__(
        self,
        services: Services,
        channel: Channel,
        correlation_id: int,
        version: int,
        requested: list[RequestedTopic],
        topics: list[CommitTopic],
    ) -> None:
        self._services = services
        self._slot = channel.defer()
        self._correlation_id = correlation_id
        self._version = version
        self._requested = requested
        self._topics = topics

    def __call__(self, codes: Any) -> None:
        """Answer with the CommitCodes of the commit or with a KlammError."""
        # No codes: every partition is NONE, and the kernel encodes the response from the request.
        if not codes:
            self._slot.send((kernels.write_answer(self._correlation_id, self._version, self._requested),))
            return
        if isinstance(codes, KlammError):
            response = refuse_all(self._requested, codes.code)
        else:
            response = build_response(self._topics, codes)
        count_errors(self._services.request_times.by_key[API_KEY], response)
        body = encode(response, self._version)
        self._slot.send((build_frame(self._correlation_id, body, flexible=self._version >= FLEXIBLE_SINCE),))
