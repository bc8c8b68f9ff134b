"""Replies to Produce that wait until every partition of the request is acknowledged or refused.

The server's side of `replication/core/acknowledgements` for requests of any form; `produce_quick` has the replies to
those of the usual form.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from klamm.model.errors import ErrorCode
from klamm.net import Channel
from klamm.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from klamm.replication import Replica
from klamm.replication.core.acknowledgements import NEVER_MS
from klamm.server.handlers.data.leader_hints import node_endpoints, partition_image
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

ACKS_ALL = -1


class PendingPartition:
    """One partition of a Produce, from staging until its append is written and, for acks=all, committed."""

    __slots__ = ("_produce", "deadline_ms", "replica", "required_offset", "response")

    def __init__(self, produce: "DelayedProduce", replica: Replica, response: PartitionProduceResponse) -> None:
        self._produce = produce
        self.replica = replica
        self.response = response
        self.required_offset = replica.log.next_offset
        self.deadline_ms = produce.deadline_ms

    def succeed(self) -> None:
        """Keep the response that was built when the batch was staged."""
        self._produce.on_partition_done(self)

    def fail(self, error: ErrorCode, message: str | None = None) -> None:
        """Answer the partition with an error."""
        response = self.response
        response.error_code = error
        response.error_message = message
        # They were set when the batch was staged; with an error Kafka returns -1.
        response.base_offset = response.log_append_time_ms = -1
        self._produce.on_partition_done(self)


class DelayedProduce:
    """A Produce that is answered once, when all of its partitions are acknowledged; acks=all no later than its timeout.

    Partitions are added until `start`: those acknowledged before do not complete the request.
    """

    __slots__ = ("_complete", "_done", "_open", "_started", "_timer", "deadline_ms")

    def __init__(self, complete: Callable[[], None], deadline_ms: int = NEVER_MS) -> None:
        self._complete = complete
        self._open: dict[PendingPartition, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._started = False
        self._done = False
        self.deadline_ms = deadline_ms

    def add(self, partition: PendingPartition) -> None:
        """Wait for this partition too."""
        self._open[partition] = None

    def start(self, loop: asyncio.AbstractEventLoop, timeout_ms: int) -> None:
        """Begin to wait, once all partitions are added; completes at once when none is open."""
        self._started = True
        if not self._open:
            self._finish()
        elif self.deadline_ms < NEVER_MS:
            self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._expire)

    def on_partition_done(self, partition: PendingPartition) -> None:
        """Complete the request if `partition` was the last one."""
        self._open.pop(partition, None)
        if not self._open and self._started:
            self._finish()

    def _expire(self) -> None:
        # With the request's deadline as the time: the timer may fire a moment before the clock reaches it.
        for partition in list(self._open):
            partition.replica.acknowledgements.expire(self.deadline_ms)

    def cancel(self) -> None:
        """Send no reply: the connection is closed. What was staged stays staged."""
        self._done = True
        if self._timer is not None:
            self._timer.cancel()

    def _finish(self) -> None:
        # A timeout and a commit may both arrive in one turn.
        if not self._done:
            self.cancel()
            self._complete()


def build_response(
    services: Services, context: RequestContext, topics: Iterable[tuple[Any, list[PartitionProduceResponse]]]
) -> ProduceResponse:
    """Return the response to a request; with NOT_LEADER_OR_FOLLOWER it names the leader and its address (KIP-951)."""
    leaders: set[int] = set()
    responses = []
    for topic, partitions in topics:
        for partition in partitions:
            if partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                image = partition_image(services, topic.name, topic.topic_id, partition.index)
                if image is not None:
                    leaders.add(image.leader)
                    partition.current_leader = LeaderIdAndEpoch(leader_id=image.leader, leader_epoch=image.leader_epoch)
        responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=partitions))
    endpoints = node_endpoints(services, context, leaders, NodeEndpoint)
    return ProduceResponse(responses=responses, node_endpoints=endpoints)


def refuse_all(request: ProduceRequest, error: ErrorCode) -> ProduceResponse:
    """Return the response to a request of which nothing is staged."""
    topics = [
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[
                PartitionProduceResponse(index=partition.index, error_code=error, base_offset=-1)
                for partition in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return ProduceResponse(responses=topics)


def close_if_refused(channel: Channel, response: ProduceResponse) -> None:
    """Close the connection if a partition was refused: with acks=0 nothing else reports the error to the producer."""
    refused = [(topic, partition) for topic in response.responses for partition in topic.partition_responses
               if partition.error_code]  # fmt: skip
    if refused:
        topic, partition = refused[0]
        name = f"{topic.name or topic.topic_id.hex()}-{partition.index}"
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        reason = ErrorCode(partition.error_code).name
        channel.close(f"a Produce with acks=0 was refused: {reason} for {name}{more}")
