"""Copiers as load: read committed records, write a copy of each, commit both in one transaction (exactly once).

A copier reads all partitions of one topic, as a group of its own, and writes to the same partitions of another. What it
has read counts when its transaction is committed; after anything else it begins again where its group stands.
"""

from klamm.model.errors import CorruptBatch, ErrorCode
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from klamm.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from simulation.client import GONE, LATER
from simulation.cluster import SimCluster
from simulation.consumers import SimPartitionReader
from simulation.ledger import Ledger
from simulation.transactions import NewEpochRequired, TransactionalProducer


class Copier(TransactionalProducer):
    """Copies one topic into another."""

    def __init__(
        self, cluster: SimCluster, ledger: Ledger, number: int, source: str, target: str, partitions: int, pace: float
    ) -> None:
        super().__init__(cluster, ledger, number, target, partitions, pace, name="copier")
        self.source = source
        self.group = self.name
        self.positions: dict[int, int] = {}
        """Where the group stands in the partitions of the source."""

    async def begin(self) -> None:
        """Fence who was here before, then find out how far it came."""
        await super().begin()
        await self._find_positions()

    async def finish(self) -> None:
        """Find out where the group stands at last."""
        self.positions = {}
        while not self.positions:
            try:
                await self._find_positions()
            except NewEpochRequired:
                await self.pause()

    async def _find_positions(self) -> None:
        requested_part = OffsetFetchRequestTopics(name=self.source, partition_indexes=list(range(self.partitions)))
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=self.group, topics=[requested_part])], require_stable=True
        )
        while True:
            node = await self.coordinator(0, self.group)
            try:
                group = (await self.ask(node, request, 9)).groups[0]
            except GONE:
                await self.pause()
                continue
            rows = [row for topic in group.topics for row in topic.partitions]
            codes = {ErrorCode(group.error_code), *(ErrorCode(row.error_code) for row in rows)} - {ErrorCode.NONE}
            if not codes:
                self.positions = {row.partition_index: max(row.committed_offset, 0) for row in rows}
                return
            if not codes <= LATER | {ErrorCode.UNSTABLE_OFFSET_COMMIT}:
                raise NewEpochRequired(str(codes))
            await self.pause()

    async def transact(self) -> None:
        """Copy some records of one partition."""
        index = self.random.randrange(self.partitions)
        reader = SimPartitionReader(self.source, index, committed_only=True)
        reader.position = self.positions.get(index, 0)
        values = await self._read(reader)
        if not values:
            return
        transaction = self.open()
        if not self.new_protocol:
            await self.add_partitions([index])
            await self._add_offsets()
        await self.produce(transaction, index, [f"{transaction.name}:".encode() + value for value in values])
        await self._commit_position(index, reader.position)
        commit = self.random.random() < 0.8
        await self.end(transaction, commit=commit)
        if commit:
            self.positions[index] = reader.position
        else:
            await self._find_positions()

    async def _read(self, reader: SimPartitionReader) -> list[bytes]:
        leader = await self.leader_of(self.source, reader.index)
        requested_part = FetchPartition(
            partition=reader.index,
            current_leader_epoch=self.epoch_of(self.source, reader.index),
            fetch_offset=reader.position,
            partition_max_bytes=1 << 10,
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=1,
            topics=[FetchTopic(topic=self.source, partitions=[requested_part])],
        )
        try:
            response = await self.ask(leader, request, 12)
        except GONE:
            self.forget_leader(self.source, reader.index)
            return []
        answer = response.responses[0].partitions[0] if response.responses else None
        if answer is None or answer.error_code:
            self.forget_leader(self.source, reader.index)
            return []
        try:
            records = reader.take(answer)
        except CorruptBatch as error:
            self.ledger.record_damaged(leader, self.name, error)
            return []
        for offset, value in records:
            self.ledger.read((self.source, reader.index), offset, value, self.name, committed_only=True)
        if not records and reader.position > self.positions.get(reader.index, 0):
            self.positions[reader.index] = reader.position  # only markers and what was aborted
        return [value for _, value in records]

    async def _add_offsets(self) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=self.group,
        )
        while True:
            code = ErrorCode((await self.ask_coordinator(request, 3)).error_code)
            if code == ErrorCode.NONE:
                return
            if code not in LATER:
                raise NewEpochRequired(code.name)
            await self.pause()

    async def _commit_position(self, index: int, position: int) -> None:
        row = TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=position, committed_metadata="")
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=self.source, partitions=[row])],
        )
        while True:
            node = await self.coordinator(0, self.group)
            try:
                response = await self.ask(node, request, 5 if self.new_protocol else 3)
            except GONE:
                await self.pause()
                continue
            code = ErrorCode(response.topics[0].partitions[0].error_code)
            if code == ErrorCode.NONE:
                return
            if code not in LATER:
                self.check_answer(code)
            await self.pause()
