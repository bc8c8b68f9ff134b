"""OffsetCommit, the short way: everything is allowed, known and of the usual form, as nearly every commit is.

The request is read by a compiled kernel, and its answer is written before anybody has to wait for it. Whatever is
unusual, and every refusal, takes the long way in `offset_commit`, which gives the same answer to the byte.
"""

from typing import Any

from klamm.coordinator.core.shard import Decision
from klamm.coordinator.groups import kernels
from klamm.metadata.image import TopicsImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import Uuid
from klamm.net import Channel
from klamm.protocol.codec import encode
from klamm.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from klamm.server.handlers.offsets.offset_commit import TOPIC_IDS_SINCE
from klamm.server.requests.replies import frame_of
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
    """Commit if nothing speaks against it; False leaves the request untouched for the long way."""
    commit = kernels.read_commit(view[start:end], version)
    if commit is None:
        return False
    group_id, generation, member_id, instance_id, topics = commit
    active = services.coordinators.groups.serving(group_id)
    known = _known(services.image.topics, topics, by_id=version >= TOPIC_IDS_SINCE)
    if active is None or known is None:
        return False
    now = active.now()
    decided = active.shard.commit_plainly(group_id, generation, member_id, instance_id, known, version, now)
    if decided is None:
        return False
    records, timers = decided
    reply = _Reply(channel, correlation_id, version, topics)
    active.carry_out(Decision(records, ((reply, None),), timers), now)
    return True


def _known(image: TopicsImage, topics: list[Any], *, by_id: bool) -> list[tuple[str, Uuid, Any]] | None:
    """(name, id, partitions) of every topic; None when the cluster does not know all of it."""
    found = []
    for name_or_id, partitions in topics:
        topic = image.by_id.get(name_or_id) if by_id else image.by_name.get(name_or_id)
        if topic is None:
            return None
        there = topic.partitions
        for each in partitions:
            if each[0] not in there:
                return None
        found.append((topic.name, topic.id, partitions))
    return found


class _Reply:
    """The answer that everything is stored, kept until it is; only a failed write needs another one."""

    __slots__ = ("_correlation_id", "_slot", "_topics", "_version", "_written")

    def __init__(self, channel: Channel, correlation_id: int, version: int, topics: list[Any]) -> None:
        self._slot = channel.defer()
        self._correlation_id = correlation_id
        self._version = version
        self._topics = topics
        self._written = kernels.write_answer(correlation_id, version, topics)

    def __call__(self, response: object) -> None:
        """Answer, with what was written or with a KlammError."""
        if isinstance(response, KlammError):
            body = encode(_refused(self._topics, response.code), self._version)
            self._slot.send((frame_of(self._correlation_id, body, flexible=self._version >= FLEXIBLE_SINCE),))
        else:
            self._slot.send((self._written,))


def _refused(topics: list[Any], code: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=name_or_id if isinstance(name_or_id, str) else "",
                topic_id=name_or_id if isinstance(name_or_id, bytes) else bytes(16),
                partitions=[OffsetCommitResponsePartition(partition_index=each[0], error_code=code) for each in rows],
            )
            for name_or_id, rows in topics
        ]
    )
