"""Partitions without a replica on this node: their ends and the times of their records, from their leaders.

A scrape names the partitions and the offsets of groups in them; a round in the background asks for the ends and then
looks up times, until those of all offsets are known well enough or the lookups of the round are used up. Each leader
has at most one request under way, of a bounded number of partitions.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from klamm.model.errors import ErrorCode, KlammError, ProtocolError
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from klamm.server.cluster.broker_peers import BrokerPeers
from klamm.server.metrics.lag.record_times import RecordTimes
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.services import Services

log = get_logger("metrics")

INTERVAL_S: Final = 5.0
"""Between the starts of two rounds, which only scrapes begin."""
ENDS_PER_REQUEST: Final = 1_000
LOOKUPS_PER_REQUEST: Final = 200
"""A lookup reads a batch of the leader."""
LOOKUPS_MAX: Final = 2_000
"""Of one round and leader."""
STEPS_MAX: Final = 24
"""Requests of a round that may build on one another."""
LIST_OFFSETS_VERSION: Final = 5
LATEST: Final = -1


class RemotePartitions:
    """What is known of partitions of other nodes as of the last round."""

    def __init__(self, services: "Services") -> None:
        self._services = services
        self._peers: BrokerPeers | None = None
        self._partitions: dict[TopicPartition, RecordTimes] = {}
        self._wanted: dict[TopicPartition, set[int]] = {}
        """The offsets of groups that the current scrape has asked for."""
        self._began_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def find(self, topic: str, index: int, committed: int) -> RecordTimes | None:
        """Return what is known of a partition, and ask for more of it in the next round; None if it is new."""
        partition = TopicPartition(topic, index)
        self._wanted.setdefault(partition, set()).add(committed)
        return self._partitions.get(partition)

    def refresh(self) -> None:
        """Begin a round at the end of a scrape, unless one is under way or was begun a moment ago."""
        now = self._services.loop.time()
        # What this scrape wanted the next one wants, too, perhaps at other offsets.
        wanted, self._wanted = self._wanted, {}
        if wanted and self._task is None and now - self._began_at >= INTERVAL_S:
            self._began_at = now
            self._task = self._services.loop.create_task(self._run_round(wanted), name="remote lag")

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
        if self._peers is not None:
            self._peers.close()

    async def _run_round(self, wanted: dict[TopicPartition, set[int]]) -> None:
        known = self._partitions
        self._partitions = {partition: known.get(partition) or RecordTimes() for partition in wanted}
        self._peers = self._peers or BrokerPeers(self._services, "metrics")
        try:
            # One leader that does not answer delays none of the others.
            await asyncio.gather(
                *(
                    self._ask_leader(leader, {partition: wanted[partition] for partition in partitions})
                    for leader, partitions in self._by_leader(wanted).items()
                )
            )
        finally:
            self._task = None

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            image = self._services.image.topics.partition(partition.topic, partition.partition)
            if image is not None and image.has_leader:
                by_leader.setdefault(image.leader, []).append(partition)
        return by_leader

    async def _ask_leader(self, leader: int, wanted: dict[TopicPartition, set[int]]) -> None:
        try:
            for chunk in _chunks(list(wanted), ENDS_PER_REQUEST):
                await self._ask_ends(leader, chunk)
            await self._ask_times(leader, wanted)
        except (KlammError, ProtocolError, TimeoutError, OSError) as error:
            log.debug("lag of remote partitions not refreshed", leader=leader, reason=error)
        for partition, offsets in wanted.items():
            self._partitions[partition].prune(offsets)

    async def _ask_ends(self, leader: int, partitions: list[TopicPartition]) -> None:
        now_ms = self._services.clock.now_ms()
        for partition, answer in await self._list_offsets(leader, dict.fromkeys(partitions, LATEST)):
            self._partitions[partition].set_end(answer.offset, now_ms)

    async def _ask_times(self, leader: int, wanted: dict[TopicPartition, set[int]]) -> None:
        """Look up one time of each partition in a step, that of the offset of which least is known."""
        left = LOOKUPS_MAX
        for step in range(STEPS_MAX):
            lookups = self._choose_lookups(wanted, step)
            if not lookups or left <= 0:
                return
            for chunk in _chunks(list(lookups)[:left], LOOKUPS_PER_REQUEST):
                times = {partition: lookups[partition] for partition in chunk}
                left -= len(chunk)
                for partition, answer in await self._list_offsets(leader, times):
                    self._partitions[partition].add(times[partition], answer.offset, answer.timestamp)

    def _choose_lookups(self, wanted: dict[TopicPartition, set[int]], step: int) -> dict[TopicPartition, int]:
        now_ms = self._services.clock.now_ms()
        lookups: dict[TopicPartition, tuple[int, int]] = {}
        for partition, offsets in wanted.items():
            records = self._partitions[partition]
            for offset in offsets:
                target_ms = records.next_lookup(offset, now_ms, step) if offset < records.end else None
                if target_ms is None:
                    continue
                spread_ms = records.spread_ms(offset)
                if partition not in lookups or spread_ms > lookups[partition][0]:
                    lookups[partition] = (spread_ms, target_ms)
        # Where least is known first: the lookups of a round may not be enough for all.
        order = sorted(lookups, key=lambda partition: -lookups[partition][0])
        return {partition: lookups[partition][1] for partition in order}

    async def _list_offsets(
        self, leader: int, times: dict[TopicPartition, int]
    ) -> list[tuple[TopicPartition, ListOffsetsPartitionResponse]]:
        """Return the answers without an error; another leader is asked in the next round."""
        assert self._peers is not None
        topics: dict[str, ListOffsetsTopic] = {}
        for (topic, index), time_ms in times.items():
            entry = topics.setdefault(topic, ListOffsetsTopic(name=topic, partitions=[]))
            entry.partitions.append(ListOffsetsPartition(partition_index=index, timestamp=time_ms))
        request = ListOffsetsRequest(replica_id=-1, topics=list(topics.values()))
        response = await self._peers.ask(leader, request, LIST_OFFSETS_VERSION)
        return [
            (TopicPartition(answer.name, partition.partition_index), partition)
            for answer in response.topics
            for partition in answer.partitions
            if partition.error_code == ErrorCode.NONE
        ]


def _chunks(partitions: list[TopicPartition], size: int) -> Iterator[list[TopicPartition]]:
    for start in range(0, len(partitions), size):
        yield partitions[start : start + size]
