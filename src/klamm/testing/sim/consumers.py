"""Consumers as load: read partitions from their leaders, in order, and tell the ledger what they saw."""

from typing import Any

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.records.batch import iter_batches
from klamm.records.control import end_txn_marker
from klamm.testing.sim.client import GONE, Client
from klamm.testing.sim.cluster import SimCluster
from klamm.testing.sim.ledger import Ledger


class Reader:
    """Where one consumer stands in one partition, and what it must not show of aborted transactions."""

    def __init__(self, topic: str, index: int, *, committed_only: bool) -> None:
        self.topic = topic
        self.index = index
        self.position = 0
        self.committed_only = committed_only

    def take(self, data: Any) -> list[tuple[int, bytes]]:
        """The records of an answer from the position on; moves it."""
        if data.records is None or not len(data.records):
            return []
        aborted = sorted((t.first_offset, t.producer_id) for t in data.aborted_transactions or ())
        hidden: set[int] = set()
        found: list[tuple[int, bytes]] = []
        for view in iter_batches(bytes(data.records), allow_incomplete_tail=True):
            view.check_crc()
            while aborted and aborted[0][0] <= view.last_offset:
                hidden.add(aborted.pop(0)[1])
            if view.is_control:
                if end_txn_marker(view) is not None:
                    hidden.discard(view.producer_id)
            elif not (self.committed_only and view.is_transactional and view.producer_id in hidden):
                found += [(r.offset, r.value or b"") for r in view.decode() if r.offset >= self.position]
            self.position = max(self.position, view.next_offset)
        return found


class Consumer(Client):
    """Reads all partitions of one topic over and over from where it stands."""

    def __init__(
        self, cluster: SimCluster, ledger: Ledger, name: str, topic: str, partitions: int, *, committed_only: bool
    ) -> None:
        super().__init__(cluster, name)
        self.ledger = ledger
        self.topic = topic
        self.committed_only = committed_only
        self.readers = [Reader(topic, index, committed_only=committed_only) for index in range(partitions)]

    async def run(self) -> None:
        for reader in self.readers:
            self.loop.create_task(self._read_all(reader), name=f"{self.name} reads {reader.topic}-{reader.index}")

    async def _read_all(self, reader: Reader) -> None:
        while not self.stopping:
            leader = await self.leader_of(reader.topic, reader.index)
            try:
                response = await self.ask(leader, self.request(reader), 12)
            except GONE:
                self.forget_leader(reader.topic, reader.index)
                await self.pause()
                continue
            answer = response.responses[0].partitions[0] if response.responses else None
            if answer is None:
                await self.pause()
                continue
            code = ErrorCode(answer.error_code)
            if code == ErrorCode.OFFSET_OUT_OF_RANGE and reader.topic not in self.ledger.lossy:
                self.ledger._violate(
                    f"5: {self.name} stands at {reader.topic}-{reader.index}@{reader.position}, out of range on node"
                    f" {leader}"
                )
                return
            if code != ErrorCode.NONE:
                self.forget_leader(reader.topic, reader.index)
                await self.pause()
                continue
            if answer.last_stable_offset > answer.high_watermark:
                self.ledger._violate(f"10: {reader.topic}-{reader.index} has a stable offset beyond the high watermark")
            place = (reader.topic, reader.index)
            for offset, value in reader.take(answer):
                self.ledger.read(place, offset, value, self.name, committed_only=self.committed_only)

    def request(self, reader: Reader, max_wait_ms: int = 500) -> FetchRequest:
        """The next fetch of a reader."""
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=int(self.committed_only),
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
