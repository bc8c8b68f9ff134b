"""Consumers as load: read partitions from their leaders, in order, and tell the ledger what they saw."""

import contextlib
from typing import Any

from klamm.model.errors import CorruptBatch, ErrorCode
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.records.batch import iter_batches
from klamm.records.control import end_txn_marker
from simulation.client import GONE, Client
from simulation.cluster import SimCluster
from simulation.ledger import Ledger


class SimPartitionReader:
    """Where one consumer stands in one partition, and what it must not show of aborted transactions."""

    def __init__(self, topic: str, index: int, *, committed_only: bool) -> None:
        self.topic = topic
        self.index = index
        self.position = 0
        self.committed_only = committed_only
        self.records = self.bytes = 0
        """What was read in all."""
        self.nearest: int | None = None
        """The replica the leader has sent this reader to (KIP-392)."""

    def take(self, data: Any) -> list[tuple[int, bytes]]:
        """The records of an answer from the position on; moves it. CorruptBatch when the first batch is damaged."""
        if data.records is None or not len(data.records):
            return []
        aborted = sorted((t.first_offset, t.producer_id) for t in data.aborted_transactions or ())
        hidden: set[int] = set()
        began = self.position
        records: list[tuple[int, bytes]] = []
        try:
            for view in iter_batches(bytes(data.records), allow_incomplete_tail=True):
                view.check_crc()
                while aborted and aborted[0][0] <= view.last_offset:
                    hidden.add(aborted.pop(0)[1])
                if view.is_control:
                    if end_txn_marker(view) is not None:
                        hidden.discard(view.producer_id)
                elif not (self.committed_only and view.is_transactional and view.producer_id in hidden):
                    records += [(r.offset, r.value or b"") for r in view.decode() if r.offset >= self.position]
                self.position = max(self.position, view.next_offset)
        except CorruptBatch:
            if self.position == began:
                raise  # else what came before it counts, and the next answer begins with the damage
        self.records += len(records)
        self.bytes += sum(len(value) for _, value in records)
        return records


class SimConsumer(Client):
    """Reads all partitions of one topic over and over from where it stands; with a rack, from the replica there."""

    def __init__(
        self,
        cluster: SimCluster,
        ledger: Ledger,
        name: str,
        topic: str,
        partitions: int,
        *,
        committed_only: bool,
        rack: str = "",
    ) -> None:
        super().__init__(cluster, name)
        self.ledger = ledger
        self.topic = topic
        self.committed_only = committed_only
        self.rack = rack
        self.readers: list[SimPartitionReader] = []
        self.ends: dict[int, int] = {}
        """Where the partitions end for good; with it known, reading ends there."""
        self._started = False
        self.grow(partitions)

    @property
    def done(self) -> bool:
        """Whether everything has been read."""
        return all(reader.position >= self.ends.get(reader.index, 1 << 62) for reader in self.readers)

    def grow(self, partitions: int) -> None:
        """There are more partitions now."""
        for index in range(len(self.readers), partitions):
            reader = SimPartitionReader(self.topic, index, committed_only=self.committed_only)
            self.readers.append(reader)
            if self._started:
                self.loop.spawn(self.process, self._read_all(reader), name=f"{self.name} reads {self.topic}-{index}")

    async def run(self) -> None:
        self._started = True
        for reader in self.readers:
            self.loop.create_task(self._read_all(reader), name=f"{self.name} reads {reader.topic}-{reader.index}")

    async def _read_all(self, reader: SimPartitionReader) -> None:
        while reader.position < self.ends.get(reader.index, 1 << 62):
            node = reader.nearest
            if node is not None and node not in self.brokers:
                with contextlib.suppress(*GONE):
                    await self.refresh(reader.topic)
            if node is None or node not in self.brokers:
                node = await self.leader_of(reader.topic, reader.index)
            if not await self._read(reader, node):
                if reader.nearest is not None:
                    reader.nearest = None
                else:
                    self.forget_leader(reader.topic, reader.index)
                await self.pause()

    async def _read(self, reader: SimPartitionReader, node: int) -> bool:
        """Ask one broker; False when another one has to be asked."""
        try:
            response = await self.ask(node, self.request(reader), 12)
        except GONE:
            return False
        answer = response.responses[0].partitions[0] if response.responses else None
        if answer is None:
            return False
        code = ErrorCode(answer.error_code)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE and reader.nearest is None and reader.topic not in self.ledger.lossy:
            self.ledger.violate(
                f"5: {self.name} stands at {reader.topic}-{reader.index}@{reader.position}, out of range on node {node}"
            )
        if code != ErrorCode.NONE:
            return False
        if answer.last_stable_offset > answer.high_watermark:
            self.ledger.violate(f"10: {reader.topic}-{reader.index} has a stable offset beyond the high watermark")
        if answer.preferred_read_replica >= 0:
            reader.nearest = answer.preferred_read_replica
        try:
            records = reader.take(answer)
        except CorruptBatch as error:
            self.ledger.record_damaged(node, self.name, error)
            return False
        place = (reader.topic, reader.index)
        for offset, value in records:
            self.ledger.read(place, offset, value, self.name, committed_only=self.committed_only)
        return True

    def request(self, reader: SimPartitionReader, max_wait_ms: int = 500) -> FetchRequest:
        """The next fetch of a reader."""
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=int(self.committed_only),
            rack_id=self.rack,
            topics=[
                FetchTopic(
                    topic=reader.topic,
                    partitions=[
                        FetchPartition(
                            partition=reader.index,
                            current_leader_epoch=self.epoch_of(reader.topic, reader.index),
                            fetch_offset=reader.position,
                            partition_max_bytes=1 << 18,
                        )
                    ],
                )
            ],
        )
