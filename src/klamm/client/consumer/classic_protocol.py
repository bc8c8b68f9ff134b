"""Membership by the classic protocol: join, one member assigns, sync, heartbeat.

Joining runs in a task, so that a poll may return meanwhile; the user's callbacks (on_revoke, on_assign) run in `poll`.
With cooperative assignors (KIP-429) partitions are kept while the group rebalances.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.core.assignors import Assignor, MemberSubscription, assignors
from klamm.client.consumer.group import Host
from klamm.client.consumer.offsets import GroupCoordinator
from klamm.client.errors import FencedInstanceIdError, KafkaError, error_for
from klamm.client.group_member import CoordinatedMember
from klamm.client.producer.coordinator import GroupMetadata
from klamm.model.errors import ErrorCode, ProtocolError
from klamm.model.ids import TopicPartition
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from klamm.protocol.messages.consumer_protocol import TopicPartition as WirePartitions

_log = logging.getLogger(__name__)

# v3 carries generation and rack (KIP-792, KIP-881). An older leader decodes the fields it has and ignores the rest.
_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 1
# A member with a newer client may send more; versions only append fields, so the newest version here decodes it.
_NEWEST = 3
# How soon a leader looks again for a topic that did not exist when it assigned.
_NEW_TOPIC_S = 0.3
_LEAVE_S = 5.0
_LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class ClassicMembership:
    """One member of a classic group."""

    def __init__(self, cluster: ClusterClient, coordinator: GroupCoordinator, host: Host) -> None:
        settings = cluster.settings
        self._cluster = cluster
        self._coordinator = coordinator
        self._host = host
        self._assignors = assignors(settings["partition.assignment.strategy"])
        # Eager unless all assignors are cooperative: with a mix the group may choose the eager one, which needs every
        # member to revoke everything before it joins. The upgrade of KIP-429 relies on it.
        self._cooperative = all(assignor.cooperative for assignor in self._assignors)
        self._interval_s = settings.seconds("heartbeat.interval.ms")
        self._poll_ms = settings.number("max.poll.interval.ms")
        self._instance_id = settings["group.instance.id"]
        self._rack = settings.text("client.rack") or None
        self._member = CoordinatedMember(
            coordinator,
            "consumer",
            session_ms=settings.number("session.timeout.ms"),
            # The slowest member rejoins within max.poll.interval.ms: members rejoin in a poll.
            rebalance_ms=self._poll_ms,
            instance_id=self._instance_id,
        )
        self._metadata = GroupMetadata(coordinator.group_id, -1, "", self._instance_id)
        self._rejoin = True
        self._lost = False
        self._fatal: KafkaError | None = None
        self._join_task: asyncio.Task[list[TopicPartition]] | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._counts: dict[str, int] | None = None
        self._loop = asyncio.get_running_loop()
        self._last_poll = self._loop.time()
        self._timed_out = False

    def metadata(self) -> GroupMetadata:
        """The last generation and member id, also after membership was lost: a late commit must be refused.

        A commit without member id counts as one of a tool, which may commit to a group that has no members.
        """
        return self._metadata

    def on_metadata_changed(self) -> None:
        """Rejoin when the partition counts differ from those that this member assigned as leader."""
        if not self._counts:
            return
        count = self._cluster.table.partition_count
        # 0 is a topic that metadata lacks at the moment, perhaps one being deleted: no reason to rebalance.
        if any(count(name) not in (0, known) for name, known in self._counts.items()):
            self.rejoin()

    def _refresh_unknown_topics(self) -> None:
        """Request metadata while a subscribed topic is unknown: it may be about to be created."""
        if self._counts and not all(self._counts.values()):
            self._cluster.request_update()

    def rejoin(self) -> None:
        """The subscription changed."""
        self._rejoin = True
        self._host.wake()

    async def poll(self, deadline: float) -> bool:
        """Rejoin if needed and apply the assignment; False when the group still rebalances at `deadline`."""
        self._last_poll = self._loop.time()
        if self._timed_out:
            self._timed_out = False
            self._rejoin = True
        if self._fatal is not None:
            raise self._fatal
        if self._lost:
            self._lost = False
            await self._host.lose()
        if self._join_task is None:
            if not self._rejoin:
                return True
            # Eager: revoke and commit before JoinGroup, after which the leader may give partitions to other members.
            if not self._cooperative and self._host.owned:
                await self._host.revoke(self._host.owned)
            # Reset before the join: a change of the subscription while it runs asks for another one.
            self._rejoin = False
            self._host.work.begin_rebalance()
            self._join_task = asyncio.create_task(self._join(), name="klamm group join")
        joining = self._join_task
        done, _ = await asyncio.wait({joining}, timeout=max(deadline - self._loop.time(), 0))
        if not done:
            return self._cooperative and bool(self._host.owned)
        if self._join_task is not joining:  # `leave` ran while this poll waited
            return False
        self._join_task = None
        try:
            assigned = joining.result()
        except KafkaError as error:
            self._rejoin = True
            self._host.work.fail_rebalance()
            if error.retriable:
                return False
            raise
        await self._apply_assignment(assigned)
        self._host.work.end_rebalance()
        return True

    async def _apply_assignment(self, assigned: list[TopicPartition]) -> None:
        owned = set(self._host.owned)
        revoked = owned - set(assigned)
        if revoked:
            await self._host.revoke(sorted(revoked))
            if self._cooperative:
                # The second round of KIP-429: only after this member rejoins without them may others get them.
                self._rejoin = True
        await self._host.assign([partition for partition in assigned if partition not in owned])

    # Joining

    async def _join(self) -> list[TopicPartition]:
        """Join until there is an assignment; retriable errors are retried."""
        backoff = self._cluster.backoff()
        while True:
            try:
                return await self._join_once()
            except KafkaError as error:
                self._coordinator.check_moved(error)
                code = error.code
                if code is ErrorCode.MEMBER_ID_REQUIRED:
                    # KIP-394: the first join only fetches a member id; join again at once with it.
                    continue
                if code in _LOST:
                    self._member.forget()
                    self._lost = True
                elif code is ErrorCode.REBALANCE_IN_PROGRESS:
                    pass
                elif isinstance(error, FencedInstanceIdError) or not error.retriable:
                    self._fatal = error
                    raise
            await asyncio.sleep(backoff.next())

    async def _join_once(self) -> list[TopicPartition]:
        topics = sorted(self._host.topics)
        # With allow.auto.create.topics this refresh creates them, before the leader counts partitions.
        if any(not self._cluster.table.partition_count(name) for name in topics):
            await self._cluster.refresh(topics)
        joined = await self._member.join(
            (assignor.name, self._subscription(topics, assignor)) for assignor in self._assignors
        )
        self._metadata = self._metadata._replace(generation_id=joined.generation_id, member_id=joined.member_id)
        self._counts = None
        # skip_assignment (KIP-814): a static leader that restarted leads an assignment that already exists.
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        assignments = await self._assign_all(joined) if leads else {}
        assignment = await self._member.sync(joined.protocol_name, assignments)
        if self._counts is None:
            self._counts = {name: self._cluster.table.partition_count(name) for name in topics} if leads else {}
        self._start_heartbeats()
        return decode_assignment(assignment)

    def _subscription(self, topics: list[str], assignor: Assignor) -> bytes:
        owned: dict[str, list[int]] = {}
        # Eager range and round robin ignore what members own; librdkafka and Java send none for them either.
        if assignor.sticky or self._cooperative:
            for topic, partition in self._host.owned:
                owned.setdefault(topic, []).append(partition)
        message = ConsumerProtocolSubscription(
            topics=topics,
            user_data=None,
            owned_partitions=[WirePartitions(topic=name, partitions=parts) for name, parts in owned.items()],
            generation_id=self._member.generation,
            rack_id=self._rack,
        )
        return _SUBSCRIPTION_VERSION.to_bytes(2, "big") + encode(message, _SUBSCRIPTION_VERSION)

    async def _assign_all(self, joined: Any) -> dict[str, bytes]:
        members: dict[str, MemberSubscription] = {}
        for member in joined.members:
            members[member.member_id] = decode_subscription(member.metadata, member.group_instance_id)
        # Topics of all members, some of which this one does not read; metadata must have their partition counts.
        topics = {topic for member in members.values() for topic in member.topics}
        await self._cluster.refresh(topics)
        counts = {name: self._cluster.table.partition_count(name) for name in topics}
        self._counts = dict(counts)
        self._loop.call_later(_NEW_TOPIC_S, self._refresh_unknown_topics)
        assignor = next(
            (assignor for assignor in self._assignors if assignor.name == joined.protocol_name), self._assignors[0]
        )
        assignment: Mapping[str, list[TopicPartition]] = assignor.assign(
            members, {name: count for name, count in counts.items() if count}
        )
        return {name: encode_assignment(partitions) for name, partitions in assignment.items()}

    # Heartbeats

    def _start_heartbeats(self) -> None:
        if self._heartbeat_task is None or self._heartbeat_task.done():
            self._heartbeat_task = asyncio.create_task(self._heartbeat_loop(), name="klamm group heartbeat")

    async def _heartbeat_loop(self) -> None:
        while self._member.generation >= 0:
            await asyncio.sleep(self._interval_s)
            # The coordinator takes JoinGroup for a sign of life; a heartbeat would only answer REBALANCE_IN_PROGRESS.
            if self._join_task is not None and not self._join_task.done():
                continue
            if self._member.generation < 0:
                return
            self._refresh_unknown_topics()
            idle_s = self._loop.time() - self._last_poll
            # Heartbeats alone would keep a member whose application hangs (KIP-62).
            if idle_s * 1000 > self._poll_ms:
                _log.warning("no poll for %.1f s (max.poll.interval.ms=%d): leaving the group", idle_s, self._poll_ms)
                self._timed_out = self._lost = True
                with suppress(KafkaError):
                    await self._member.leave("no poll within max.poll.interval.ms")
                return
            generation, joined = self._member.generation, self._join_task
            try:
                code = await self._member.heartbeat()
            except (KafkaError, ProtocolError) as error:
                if isinstance(error, KafkaError):
                    self._coordinator.check_moved(error)
                continue
            # The reply to a heartbeat of an older generation, or sent before a join began, says nothing about now.
            if (self._member.generation, self._join_task) == (generation, joined):
                self._handle_heartbeat_error(code)

    def _handle_heartbeat_error(self, number: int) -> None:
        if not number:
            return
        error = error_for(number)
        self._coordinator.check_moved(error)
        if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin = True
        elif error.code in _LOST:
            self._member.forget()
            self._rejoin = self._lost = True
        elif not error.retriable:
            self._fatal = error
            self._lost = True
        self._host.wake()

    async def leave(self) -> None:
        """Leave; a static member only stops, and keeps its partitions until its session times out (KIP-345)."""
        tasks = [task for task in (self._join_task, self._heartbeat_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._join_task = None
        if self._instance_id is None:
            with suppress(KafkaError, TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self._member.leave("the consumer was closed")
        self._member.forget()
        self._rejoin = True


def encode_assignment(partitions: list[TopicPartition]) -> bytes:
    """The assignment of one member in the format that all clients share: two bytes of version, then the message."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    message = ConsumerProtocolAssignment(
        assigned_partitions=[WirePartitions(topic=name, partitions=parts) for name, parts in sorted(by_topic.items())],
        user_data=None,
    )
    return _ASSIGNMENT_VERSION.to_bytes(2, "big") + encode(message, _ASSIGNMENT_VERSION)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """The inverse, of any version; no bytes are no partitions."""
    if len(data) < 2:
        return []
    assignment, _ = decode(ConsumerProtocolAssignment, min(int.from_bytes(data[:2], "big"), _NEWEST), data, 2)
    return [
        TopicPartition(topic.topic, partition)
        for topic in assignment.assigned_partitions
        for partition in topic.partitions
    ]


def decode_subscription(data: bytes, instance_id: str | None) -> MemberSubscription:
    """The subscription that a member sent with JoinGroup."""
    if len(data) < 2:
        return MemberSubscription(frozenset(), instance_id=instance_id)
    subscription, _ = decode(ConsumerProtocolSubscription, min(int.from_bytes(data[:2], "big"), _NEWEST), data, 2)
    owned = tuple(
        TopicPartition(topic.topic, partition)
        for topic in subscription.owned_partitions
        for partition in topic.partitions
    )
    generation = subscription.generation_id
    # Before v2 the cooperative sticky assignor of Java sent its generation as four bytes of user data.
    if generation < 0 and subscription.user_data and len(subscription.user_data) == 4:
        generation = int.from_bytes(subscription.user_data, "big", signed=True)
    return MemberSubscription(frozenset(subscription.topics), owned, generation, instance_id, subscription.rack_id)
