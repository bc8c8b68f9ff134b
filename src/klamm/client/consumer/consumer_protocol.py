"""Membership by the consumer protocol (KIP-848): one request, repeated; the coordinator assigns.

Heartbeats run in a task. An assignment that a heartbeat returns is applied in `poll`, where the user's callbacks run,
and acknowledged by the next heartbeat.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import uuid
from contextlib import suppress
from typing import Any

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.group import Host
from klamm.client.consumer.offsets import GroupCoordinator
from klamm.client.errors import KafkaError, error_for
from klamm.client.producer.coordinator import GroupMetadata
from klamm.model.errors import ErrorCode, ProtocolError
from klamm.model.ids import ZERO_UUID, TopicPartition
from klamm.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions

_log = logging.getLogger(__name__)

# Member epochs with a meaning of their own; -2 leaves a static member's assignment in place until its session ends.
_JOIN, _LEAVE, _LEAVE_STATIC = 0, -1, -2
_FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
# Only until the first reply: the interval is the coordinator's (group.consumer.heartbeat.interval.ms).
_FIRST_INTERVAL_S = 1.0
_LEAVE_S = 5.0


class ConsumerMembership:
    """One member of a group of the consumer protocol."""

    def __init__(self, cluster: ClusterClient, coordinator: GroupCoordinator, host: Host) -> None:
        settings = cluster.settings
        self._cluster = cluster
        self._coordinator = coordinator
        self._host = host
        self._instance_id = settings["group.instance.id"]
        self._rack = settings.text("client.rack") or None
        self._assignor = settings["group.remote.assignor"]
        self._poll_ms = settings.number("max.poll.interval.ms")
        # Chosen by the client and kept for its life (KIP-1082): a repeated join after a lost reply is the same member.
        self._member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self._epoch = _JOIN
        self._interval_s = _FIRST_INTERVAL_S
        self._target: list[TopicPartitions] | None = None
        self._sent_topics: frozenset[str] | None = None
        self._sent_owned: frozenset[TopicPartition] | None = None
        self._lost = False
        self._fatal: KafkaError | None = None
        self._loop = asyncio.get_running_loop()
        self._last_poll = self._loop.time()
        self._paused = False
        self._heartbeat_due = asyncio.Event()
        self._first_response = asyncio.Event()
        self._heartbeat_task: asyncio.Task[None] | None = None

    def metadata(self) -> GroupMetadata:
        """Member epoch, member id and instance id as of now."""
        return GroupMetadata(self._coordinator.group_id, self._epoch, self._member_id, self._instance_id)

    def on_metadata_changed(self) -> None:
        """Retry an assignment that named unknown topic ids; the coordinator itself watches partition counts."""
        if self._target is not None:
            self._host.wake()

    def rejoin(self) -> None:
        """The subscription changed: send it with the next heartbeat, at once."""
        self._heartbeat_due.set()

    async def poll(self, deadline: float) -> bool:
        """Apply the assignment that the coordinator sent; join first if not a member."""
        self._last_poll = self._loop.time()
        if self._paused:
            self._paused = False
            self._heartbeat_due.set()
        if self._heartbeat_task is None:
            self._heartbeat_task = asyncio.create_task(self._heartbeat_loop(), name="klamm group heartbeat")
        if self._lost:
            self._lost = False
            await self._host.lose()
        if self._fatal is not None:
            raise self._fatal
        # A member waits for the response to its join only; later polls never wait for heartbeats.
        if self._target is None and self._epoch == _JOIN:
            self._host.work.begin_rebalance()
            self._first_response.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._first_response.wait()
            if self._fatal is not None:
                raise self._fatal
        if self._target is not None:
            await self._reconcile()
        return self._epoch > 0

    async def _reconcile(self) -> None:
        target = self._target
        assert target is not None
        names = self._cluster.table.names
        # Assignments carry topic ids only; the names come with metadata, which may be older than the topic.
        if any(partition.topic_id not in names for partition in target):
            await self._cluster.refresh(self._host.topics)
            names = self._cluster.table.names
        known = [
            TopicPartition(names[partition.topic_id], part)
            for partition in target
            if partition.topic_id in names
            for part in partition.partitions
        ]
        # A heartbeat during the refresh may have brought a newer target, which the next poll applies. With a topic
        # still unknown the target stays, so that `changed` retries it; the known part is applied now.
        if self._target is target and all(partition.topic_id in names for partition in target):
            self._target = None
        owned = set(self._host.owned)
        # Revoke before assign: the coordinator gives a partition to its next member when this one reports it gone.
        revoked = owned - set(known)
        if revoked:
            await self._host.revoke(sorted(revoked))
        added = [partition for partition in sorted(known) if partition not in owned]
        if added:
            await self._host.assign(added)
        if self._target is None:
            self._host.work.end_rebalance()
        # Acknowledge at once: until then the coordinator holds revoked partitions back from other members.
        self._heartbeat_due.set()

    # Heartbeats

    def _request(self) -> ConsumerGroupHeartbeatRequest:
        """All fields when joining, afterwards those that changed: null means unchanged (KIP-848)."""
        topics, owned = self._host.topics, frozenset(self._host.owned)
        joining = self._epoch == _JOIN
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._coordinator.group_id, member_id=self._member_id, member_epoch=self._epoch
        )
        if joining:
            request.instance_id = self._instance_id
            request.rack_id = self._rack
            request.rebalance_timeout_ms = self._poll_ms
            request.server_assignor = self._assignor
            # A member that joins owns nothing; the coordinator refuses epoch 0 with partitions or without the field.
            request.topic_partitions = []
        if joining or topics != self._sent_topics:
            request.subscribed_topic_names = sorted(topics)
        if not joining and owned != self._sent_owned:
            request.topic_partitions = self._wire(owned)
        if self._instance_id is not None:
            # In every request: the coordinator fences a second process with the same instance id by it.
            request.instance_id = self._instance_id
        return request

    def _wire(self, owned: frozenset[TopicPartition]) -> list[TopicPartitions]:
        by_topic: dict[bytes, list[int]] = {}
        for topic, partition in sorted(owned):
            topic_id = self._cluster.table.topic_id(topic)
            if topic_id != ZERO_UUID:
                by_topic.setdefault(topic_id, []).append(partition)
        return [TopicPartitions(topic_id=indexes, partitions=parts) for indexes, parts in by_topic.items()]

    async def _heartbeat_loop(self) -> None:
        backoff = self._cluster.backoff()
        while True:
            idle_s = self._loop.time() - self._last_poll
            # Heartbeats alone would keep a member whose application hangs; max.poll.interval.ms is the client's check
            # (KIP-62). The next poll joins again.
            if idle_s * 1000 > self._poll_ms and self._epoch > 0:
                _log.warning("no poll for %.1f s (max.poll.interval.ms=%d): leaving the group", idle_s, self._poll_ms)
                with suppress(KafkaError):
                    await self._send_leave(_LEAVE)
                self._fence()
                self._paused = True
            if self._paused:
                self._heartbeat_due.clear()
                await self._heartbeat_due.wait()
                continue
            try:
                await self._send_heartbeat()
                backoff.reset()
            except (KafkaError, ProtocolError) as error:
                if isinstance(error, KafkaError):
                    self._coordinator.check_moved(error)
                    if not self._handle_error(error):
                        return
                await asyncio.sleep(backoff.next())
                continue
            # Cleared before the check: a change that is made after it sets the event again.
            self._heartbeat_due.clear()
            if self._has_unsent_changes():
                # Not at once: a subscription and an assignment that change together go in one heartbeat, and a lost
                # member sends nothing until poll has run on_lost.
                await asyncio.sleep(0.05 if self._lost else 0.005)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._heartbeat_due.wait()

    def _has_unsent_changes(self) -> bool:
        """Whether something changed while the last heartbeat was under way."""
        return self._host.topics != self._sent_topics or (
            self._target is None and frozenset(self._host.owned) != self._sent_owned
        )

    def _handle_error(self, error: KafkaError) -> bool:
        """Fence, retry or end the membership, by error; False when it has ended."""
        if error.code in _FENCED:
            self._fence()
            return True
        # UNRELEASED_INSTANCE_ID passes when the session of the previous process with this instance id ends.
        if error.retriable or error.code is ErrorCode.UNRELEASED_INSTANCE_ID:
            # Whether the coordinator applied the failed heartbeat is unknown: send all fields again.
            self._sent_topics = self._sent_owned = None
            return True
        self._fatal = error
        self._lost = True
        self._host.work.fail_rebalance()
        self._first_response.set()
        self._host.wake()
        return False

    def _fence(self) -> None:
        self._epoch = _JOIN
        self._sent_topics = self._sent_owned = None
        self._target = None
        self._lost = True
        self._host.work.fail_rebalance()
        self._host.wake()

    async def _send_heartbeat(self) -> None:
        # poll runs on_lost first: a join before it could assign partitions that the user still holds as lost.
        if self._lost:
            return
        connection = await self._coordinator.connection()
        request = self._request()
        # What this request reports; both may change while the reply is awaited.
        topics, owned = self._host.topics, frozenset(self._host.owned)
        response: Any = await connection.request(request)
        if response.error_code:
            raise error_for(response.error_code, response.error_message or self._coordinator.group_id)
        if request.subscribed_topic_names is not None:
            self._sent_topics = topics
        self._sent_owned = owned if request.member_epoch != _JOIN else frozenset()
        if response.member_id:
            self._member_id = response.member_id
        self._epoch = response.member_epoch
        self._interval_s = max(response.heartbeat_interval_ms, 1) / 1000
        if response.assignment is not None:
            self._target = response.assignment.topic_partitions
            self._host.work.begin_rebalance()
            self._host.wake()
        self._first_response.set()

    async def _send_leave(self, epoch: int) -> None:
        connection = await self._coordinator.connection()
        await connection.request(
            ConsumerGroupHeartbeatRequest(
                group_id=self._coordinator.group_id,
                member_id=self._member_id,
                member_epoch=epoch,
                instance_id=self._instance_id,
            )
        )

    async def leave(self) -> None:
        """Leave; a static member keeps its assignment until its session times out."""
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
            await asyncio.gather(self._heartbeat_task, return_exceptions=True)
            self._heartbeat_task = None
        if self._epoch > 0:
            with suppress(KafkaError, TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self._send_leave(_LEAVE if self._instance_id is None else _LEAVE_STATIC)
        self._epoch = _JOIN
        self._sent_topics = self._sent_owned = self._target = None
        self._lost = False
