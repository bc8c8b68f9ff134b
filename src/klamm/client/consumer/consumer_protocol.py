"""Membership by the new protocol (KIP-848): one request, repeated; the coordinator assigns.

Heartbeats run in a task. What they bring (an assignment) is carried out in `poll`, where the user is called back, and
acknowledged by the next heartbeat.
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

_JOIN, _LEAVE, _LEAVE_STATIC = 0, -1, -2
_FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
_FIRST_INTERVAL_S = 1.0


class ConsumerMembership:
    """One member of a group of the new protocol."""

    def __init__(self, cluster: ClusterClient, coordinator: GroupCoordinator, host: Host) -> None:
        settings = cluster.settings
        self._cluster = cluster
        self._coordinator = coordinator
        self._host = host
        self._instance_id = settings["group.instance.id"]
        self._rack = settings.text("client.rack") or None
        self._assignor = settings["group.remote.assignor"]
        self._poll_ms = settings.number("max.poll.interval.ms")
        self._member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self._epoch = _JOIN
        self._interval_s = _FIRST_INTERVAL_S
        self._target: list[TopicPartitions] | None = None
        self._told_topics: frozenset[str] | None = None
        self._told_owned: frozenset[TopicPartition] | None = None
        self._lost = False
        self._fatal: KafkaError | None = None
        self._loop = asyncio.get_running_loop()
        self._polled = self._loop.time()
        self._paused = False
        self._soon = asyncio.Event()
        self._arrived = asyncio.Event()
        self._heart: asyncio.Task[None] | None = None

    def metadata(self) -> GroupMetadata:
        """Who this member is now."""
        return GroupMetadata(self._coordinator.group_id, self._epoch, self._member_id, self._instance_id)

    def changed(self) -> None:
        """The coordinator watches partitions itself; new names of topics may let an assignment be understood."""
        if self._target is not None:
            self._host.wake()

    def rejoin(self) -> None:
        """The subscription changed: tell it with the next heartbeat."""
        self._soon.set()

    async def poll(self, deadline: float) -> bool:
        """Carry out what the coordinator wants."""
        self._polled = self._loop.time()
        if self._paused:
            self._paused = False
            self._soon.set()
        if self._heart is None:
            self._heart = asyncio.create_task(self._beating(), name="klamm group heartbeat")
        if self._lost:
            self._lost = False
            await self._host.lose()
        if self._fatal is not None:
            raise self._fatal
        if self._target is None and self._epoch == _JOIN:
            self._host.work.begin_rebalance()
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            if self._fatal is not None:
                raise self._fatal
        if self._target is not None:
            await self._reconcile()
        return self._epoch > 0

    async def _reconcile(self) -> None:
        target = self._target
        assert target is not None
        names = self._cluster.table.names
        if any(partition.topic_id not in names for partition in target):
            await self._cluster.refresh(self._host.topics)
            names = self._cluster.table.names
        known = [
            TopicPartition(names[partition.topic_id], part)
            for partition in target
            if partition.topic_id in names
            for part in partition.partitions
        ]
        if self._target is target and all(partition.topic_id in names for partition in target):
            self._target = None
        owned = set(self._host.owned)
        revoked = owned - set(known)
        if revoked:
            await self._host.revoke(sorted(revoked))
        added = [partition for partition in sorted(known) if partition not in owned]
        if added:
            await self._host.assign(added)
        if self._target is None:
            self._host.work.end_rebalance()
        self._soon.set()

    # Heartbeats

    def _request(self) -> ConsumerGroupHeartbeatRequest:
        """Everything when joining, afterwards what changed."""
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
            request.topic_partitions = []
        if joining or topics != self._told_topics:
            request.subscribed_topic_names = sorted(topics)
        if not joining and owned != self._told_owned:
            request.topic_partitions = self._wire(owned)
        if self._instance_id is not None:
            request.instance_id = self._instance_id
        return request

    def _wire(self, owned: frozenset[TopicPartition]) -> list[TopicPartitions]:
        by_topic: dict[bytes, list[int]] = {}
        for topic, partition in sorted(owned):
            topic_id = self._cluster.table.topic_id(topic)
            if topic_id != ZERO_UUID:
                by_topic.setdefault(topic_id, []).append(partition)
        return [TopicPartitions(topic_id=indexes, partitions=parts) for indexes, parts in by_topic.items()]

    async def _beating(self) -> None:
        backoff = self._cluster.backoff()
        while True:
            idle_s = self._loop.time() - self._polled
            if idle_s * 1000 > self._poll_ms and self._epoch > 0:
                _log.warning("no poll for %.1f s (max.poll.interval.ms=%d): leaving the group", idle_s, self._poll_ms)
                with suppress(KafkaError):
                    await self._say_goodbye(_LEAVE)
                self._fence()
                self._paused = True
            if self._paused:
                self._soon.clear()
                await self._soon.wait()
                continue
            try:
                await self._beat_once()
                backoff.reset()
            except (KafkaError, ProtocolError) as error:
                if isinstance(error, KafkaError):
                    self._coordinator.look(error)
                    if not self._survive(error):
                        return
                await asyncio.sleep(backoff.next())
                continue
            self._soon.clear()
            if self._unsaid():
                await asyncio.sleep(0.05 if self._lost else 0.005)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._soon.wait()

    def _unsaid(self) -> bool:
        """Whether something changed while the last heartbeat was under way."""
        return self._host.topics != self._told_topics or (
            self._target is None and frozenset(self._host.owned) != self._told_owned
        )

    def _survive(self, error: KafkaError) -> bool:
        """What an error means for the membership; False when it is over."""
        if error.code in _FENCED:
            self._fence()
            return True
        if error.retriable or error.code is ErrorCode.UNRELEASED_INSTANCE_ID:
            self._told_topics = self._told_owned = None
            return True
        self._fatal = error
        self._lost = True
        self._host.work.fail_rebalance()
        self._arrived.set()
        self._host.wake()
        return False

    def _fence(self) -> None:
        self._epoch = _JOIN
        self._told_topics = self._told_owned = None
        self._target = None
        self._lost = True
        self._host.work.fail_rebalance()
        self._host.wake()

    async def _beat_once(self) -> None:
        if self._lost:  # the user gives the partitions up before it joins again
            return
        connection = await self._coordinator.connection()
        request = self._request()
        topics, owned = self._host.topics, frozenset(self._host.owned)
        answer: Any = await connection.request(request)
        if answer.error_code:
            raise error_for(answer.error_code, answer.error_message or self._coordinator.group_id)
        if request.subscribed_topic_names is not None:
            self._told_topics = topics
        self._told_owned = owned if request.member_epoch != _JOIN else frozenset()
        if answer.member_id:
            self._member_id = answer.member_id
        self._epoch = answer.member_epoch
        self._interval_s = max(answer.heartbeat_interval_ms, 1) / 1000
        if answer.assignment is not None:
            self._target = answer.assignment.topic_partitions
            self._host.work.begin_rebalance()
            self._host.wake()
        self._arrived.set()

    async def _say_goodbye(self, epoch: int) -> None:
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
        """Leave; a static member leaves for a while."""
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
            self._heart = None
        if self._epoch > 0:
            with suppress(KafkaError, TimeoutError):
                async with asyncio.timeout(5):
                    await self._say_goodbye(_LEAVE if self._instance_id is None else _LEAVE_STATIC)
        self._epoch = _JOIN
        self._told_topics = self._told_owned = self._target = None
        self._lost = False
