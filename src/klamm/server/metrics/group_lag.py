"""The lag of groups in records and in seconds, from the logs themselves.

The lag in seconds is the age of the first record that a group has not committed: the time in the header of its batch,
which an index lookup finds. Nothing is sampled, so the first answer is as good as later ones.

Partitions without a replica on this node are asked of their leaders, in the background and only after a scrape needed
them: the ends by one ListOffsets for each leader, the times by one small Fetch for each partition that is behind.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.model.errors import CorruptBatch, ErrorCode, KlammError, ProtocolError, StorageFailure
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.records.batch import HEADER_SIZE, BatchView
from klamm.server.cluster.broker_peers import BrokerPeers
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.services import Services

log = get_logger("metrics")

TIMES_KEPT: Final = 50_000
"""Times of records that are kept: an offset's time never changes."""
REMOTE_MAX: Final = 1_000
"""Partitions of other nodes whose ends are kept, and asked for in one round."""
REMOTE_TIMES_MAX: Final = 50
"""Fetches of one round: each returns at least one whole batch."""
REMOTE_INTERVAL_S: Final = 15.0
LIST_OFFSETS_VERSION: Final = 5
FETCH_VERSION: Final = 12
LATEST: Final = -1


class LagOfGroup(NamedTuple):
    """How far a group is behind in a partition; -1 for what is not known."""

    records: int
    seconds: float


UNKNOWN: Final = LagOfGroup(-1, -1.0)


class GroupLags:
    """Computes lags on the loop; remembers times of records and the ends of other nodes' partitions."""

    def __init__(self, services: "Services") -> None:
        self._services = services
        self._times: dict[tuple[str, int, int], int] = {}
        self._remote = RemotePartitions(services)

    def find(self, topic: str, index: int, committed: int, now_ms: int) -> LagOfGroup:
        """Return the lag at a committed offset."""
        replica = self._services.replicas.find(topic, index)
        end = replica.log.high_watermark if replica is not None else self._remote.end_offset(topic, index)
        if end < 0:
            return UNKNOWN
        records = max(end - committed, 0)
        if not records:
            return LagOfGroup(0, 0.0)
        key = (topic, index, committed)
        time_ms = self._times.get(key, -1)
        if time_ms < 0:
            time_ms = self._read_time(replica, committed) if replica is not None else self._remote.time_ms(key)
            if time_ms >= 0:
                if len(self._times) >= TIMES_KEPT:
                    self._times.clear()
                self._times[key] = time_ms
        return LagOfGroup(records, max(now_ms - time_ms, 0) / 1000 if time_ms >= 0 else -1.0)

    def _read_time(self, replica: Any, offset: int) -> int:
        try:
            return int(replica.log.reader.timestamp_at(offset))
        except (KlammError, StorageFailure, CorruptBatch, OSError):
            # The log is offline or damaged, which other metrics and log lines show.
            return -1

    def refresh(self) -> None:
        """Ask other nodes for what was missing, if the last time is long enough ago."""
        self._remote.refresh()

    def close(self) -> None:
        """Ask no more."""
        self._remote.close()


class RemotePartitions:
    """The ends of partitions of other nodes, and the times of records in them, as of the last round."""

    def __init__(self, services: "Services") -> None:
        self._services = services
        self._peers: BrokerPeers | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._wanted: dict[TopicPartition, None] = {}
        self._times: dict[tuple[str, int, int], int] = {}
        self._wanted_times: dict[tuple[str, int, int], None] = {}
        self._asked_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def end_offset(self, topic: str, index: int) -> int:
        """Return the high watermark as of the last round; -1 if it is not known yet."""
        partition = TopicPartition(topic, index)
        if len(self._wanted) < REMOTE_MAX:
            self._wanted[partition] = None
        return self._ends.get(partition, -1)

    def time_ms(self, key: tuple[str, int, int]) -> int:
        """Return the time of the record at an offset; -1 if it is not known yet."""
        if key not in self._times and len(self._wanted_times) < REMOTE_TIMES_MAX:
            self._wanted_times[key] = None
        return self._times.get(key, -1)

    def refresh(self) -> None:
        """Begin a round, unless one is under way or was begun a moment ago."""
        now = self._services.loop.time()
        if not self._wanted or self._task is not None or now - self._asked_at < REMOTE_INTERVAL_S:
            return
        self._asked_at = now
        self._task = self._services.loop.create_task(self._ask(), name="remote lag")

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
        if self._peers is not None:
            self._peers.close()

    async def _ask(self) -> None:
        wanted, self._wanted = self._wanted, {}
        times, self._wanted_times = self._wanted_times, {}
        self._ends = {partition: end for partition, end in self._ends.items() if partition in wanted}
        self._times = {}
        try:
            self._peers = self._peers or BrokerPeers(self._services, "metrics")
            for leader, partitions in self._by_leader(wanted).items():
                await self._ask_ends(leader, partitions)
            for key in times:
                await self._ask_time(key)
        except (KlammError, ProtocolError, TimeoutError, OSError) as error:
            log.debug("lag of remote partitions not refreshed", reason=error)
        finally:
            self._task = None

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            image = self._services.image.topics.partition(partition.topic, partition.partition)
            if image is not None and image.has_leader:
                by_leader.setdefault(image.leader, []).append(partition)
        return by_leader

    async def _ask_ends(self, leader: int, partitions: list[TopicPartition]) -> None:
        assert self._peers is not None
        topics: dict[str, ListOffsetsTopic] = {}
        for topic, index in partitions:
            entry = topics.setdefault(topic, ListOffsetsTopic(name=topic, partitions=[]))
            entry.partitions.append(ListOffsetsPartition(partition_index=index, timestamp=LATEST))
        request = ListOffsetsRequest(replica_id=-1, topics=list(topics.values()))
        response = await self._peers.ask(leader, request, LIST_OFFSETS_VERSION)
        for answer in response.topics:
            for partition in answer.partitions:
                if partition.error_code == ErrorCode.NONE:
                    self._ends[TopicPartition(answer.name, partition.partition_index)] = partition.offset

    async def _ask_time(self, key: tuple[str, int, int]) -> None:
        assert self._peers is not None
        topic, index, offset = key
        image = self._services.image.topics.partition(topic, index)
        if image is None or not image.has_leader:
            return
        partition = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=HEADER_SIZE)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=HEADER_SIZE,
            topics=[FetchTopic(topic=topic, partitions=[partition])],
        )
        response = await self._peers.ask(image.leader, request, FETCH_VERSION)
        for answer in response.responses:
            for part in answer.partitions:
                if part.error_code == ErrorCode.NONE and part.records is not None and len(part.records) >= HEADER_SIZE:
                    self._times[key] = BatchView(part.records).timestamp_at(offset)
