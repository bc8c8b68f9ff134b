"""Transactional producers as load: small transactions over several partitions, committed, aborted, or left behind.

Even numbers speak as clients before Kafka 4 (AddPartitionsToTxn, one epoch for many transactions), odd ones as clients
since (partitions join with their first Produce, a new epoch per transaction).
"""

from typing import Any

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.records import build_batch
from simulation.client import GONE, LATER, Client
from simulation.cluster import SimCluster
from simulation.ledger import Ledger, Transaction

TIMEOUT_MS = 5_000
"""transaction.timeout.ms: what a killed producer left open is aborted after this."""


class NewEpochRequired(Exception):
    """The producer must begin again with a new epoch."""


class TransactionalProducer(Client):
    """One transactional id. Its process may be killed; the next one fences what it left behind."""

    killable = True

    def __init__(
        self,
        cluster: SimCluster,
        ledger: Ledger,
        number: int,
        topic: str,
        partitions: int,
        pace: float,
        *,
        name: str = "txn",
    ) -> None:
        super().__init__(cluster, f"{name}-{number}")
        self.ledger = ledger
        self.topic = topic
        self.partitions = partitions
        self.pace = pace
        self.new_protocol = bool(number % 2)
        self.number = 0
        self.transaction: Transaction | None = None
        self.done = False
        self.producer_id = self.epoch = -1
        self.sequences: dict[int, int] = {}

    def grow(self, partitions: int) -> None:
        """There are more partitions now."""
        self.partitions = partitions

    def kill(self) -> None:
        super().kill()
        self._give_up()

    def _give_up(self) -> None:
        """What was never asked to be committed must never be seen."""
        if self.transaction is not None and self.transaction.outcome == "open":
            self.transaction.outcome = "aborted"
        self.transaction = None

    async def run(self) -> None:
        self.done = False
        while not self.stopping:
            try:
                await self.begin()
                while not self.stopping:
                    await self.rest()
                    await self.transact()
            except NewEpochRequired:
                self._give_up()
                await self.pause()
        await self.finish()
        self.done = True

    async def rest(self) -> None:
        """What passes between two transactions."""
        await self.pause(self.pace)

    @property
    def produce_version(self) -> int:
        """The version of Produce that says which protocol is spoken."""
        return 12 if self.new_protocol else 11

    async def finish(self) -> None:
        """What is left to do after the last transaction."""

    async def begin(self) -> None:
        """Get a producer id and epoch; the previous owner of the id is fenced and its open transaction aborted."""
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=TIMEOUT_MS)
        while True:
            response = await self.ask_coordinator(request, 4)
            if response.error_code == ErrorCode.NONE:
                self.producer_id, self.epoch = response.producer_id, response.producer_epoch
                self.sequences = {}
                return
            if ErrorCode(response.error_code) not in LATER:
                raise NewEpochRequired(ErrorCode(response.error_code).name)
            await self.pause()

    async def ask_coordinator(self, request: Any, version: int) -> Any:
        """Ask until there is an answer; a lost one is asked again."""
        while True:
            node = await self.coordinator(1, self.name)
            try:
                return await self.ask(node, request, version)
            except GONE:
                await self.pause()

    def open(self) -> Transaction:
        """A new transaction."""
        self.number += 1
        transaction = self.transaction = Transaction(f"{self.name}/{self.number}")
        self.ledger.transactions.append(transaction)
        return transaction

    async def transact(self) -> None:
        """Write a little to some partitions, and commit or abort it."""
        transaction = self.open()
        chosen = self.random.sample(range(self.partitions), self.random.randint(1, self.partitions))
        if not self.new_protocol:
            await self.add_partitions(chosen)
        for index in chosen:
            for _ in range(self.random.randint(1, 2)):
                first = len(transaction.values)
                count = self.random.randint(1, 2)
                values = [f"{transaction.name}.{first + i}".encode() for i in range(count)]
                await self.produce(transaction, index, values)
        if self.random.random() < 0.1:
            await self.pause(TIMEOUT_MS / 1000)  # sometimes too long: the coordinator aborts it
        await self.end(transaction, commit=self.random.random() < 0.7)

    def make_add_partitions(self, chosen: list[int]) -> AddPartitionsToTxnRequest:
        """The request that says which partitions the transaction writes to."""
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=chosen)],
        )

    async def add_partitions(self, chosen: list[int]) -> None:
        """Say which partitions the transaction writes to, as clients before Kafka 4 do."""
        request = self.make_add_partitions(chosen)
        while True:
            codes = read_added(await self.ask_coordinator(request, 3))
            if codes <= {ErrorCode.NONE}:
                return
            if not codes <= LATER | {ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED}:
                raise NewEpochRequired(str(codes))
            await self.pause()

    async def produce(self, transaction: Transaction, index: int, values: list[bytes]) -> None:
        """Write one batch until its fate is known."""
        place = (self.topic, index)
        sequence = self.sequences.get(index, 0)
        for value in values:
            self.ledger.send(place, value, self.name, len(self.ledger.sent), transaction)
        batch = build_batch(
            [(self.cluster.machines[1].clock.now_ms(), None, value, ()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=2_000,
            topic_data=[
                TopicProduceData(
                    name=self.topic, partition_data=[PartitionProduceData(index=index, records=bytes(batch))]
                )
            ],
        )
        while True:
            leader = await self.leader_of(self.topic, index)
            try:
                response = await self.ask(leader, request, self.produce_version)
            except GONE:
                self.forget_leader(self.topic, index)
                await self.pause()
                continue
            answer = response.responses[0].partition_responses[0]
            code = ErrorCode(answer.error_code)
            if code == ErrorCode.NONE:
                self.ledger.ack(place, answer.base_offset, values)
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self.sequences[index] = sequence + len(values)
                return
            if code not in LATER:
                self.check_answer(code, sequence)
            self.forget_leader(self.topic, index)
            await self.pause()

    def check_answer(self, code: ErrorCode, sequence: int = -1) -> None:
        """A refusal ends the producer's epoch; some refusals no producer may ever see."""
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not sequence:
            self.ledger.violate(f"13: {self.name} began an epoch, and its first record was refused as a later one")
        if code == ErrorCode.INVALID_TXN_STATE:
            self.ledger.violate(
                f"21: {self.name} is in transaction {self.number}, epoch {self.epoch}, and was told that it is in none"
            )
        if code:
            raise NewEpochRequired(code.name)

    def make_end(self, *, commit: bool) -> EndTxnRequest:
        """The request that ends the transaction."""
        return EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

    async def end(self, transaction: Transaction, *, commit: bool) -> None:
        """Commit or abort."""
        request = self.make_end(commit=commit)
        transaction.outcome = "committing" if commit else "aborted"
        while True:
            response = await self.ask_coordinator(request, 5 if self.new_protocol else 4)
            code = ErrorCode(response.error_code)
            if code == ErrorCode.NONE:
                self.transaction = None
                if commit:
                    transaction.outcome = "committed"
                if self.new_protocol:
                    self.producer_id, self.epoch = response.producer_id, response.producer_epoch
                    self.sequences = {}
                return
            if code not in LATER:
                self.check_answer(code)
            await self.pause()


def read_added(response: AddPartitionsToTxnResponse) -> set[ErrorCode]:
    """What the coordinator says of the partitions that were to be added."""
    return {
        ErrorCode(partition.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    }
