"""The way of a transactional batch into its partition, with a coordinator that answers as the test says.

Tests over the wire use one node: there the markers of a transaction are written before its producer hears of its end,
so nothing arrives between a question and its answer. Here everything may.
"""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import TopicPartition
from klamm.records.batch import BatchView, build_batch
from klamm.records.control import build_end_txn_marker
from klamm.server.coordinators.transaction_gate import Abilities, TransactionGate, UnverifiedBatch
from klamm.storage.producer_state import Origin, ProducerStates

ADDS = Abilities(adds=True, knows_abortable=True)
VERIFIES = Abilities(adds=False, knows_abortable=True)
PRODUCER = ProducerIdAndEpoch(7, 5)
NAME = TopicPartition("t", 0)
Answer = Callable[[], ErrorCode]


class Partition:
    """A partition that this node leads."""

    def __init__(self, index: int = 0) -> None:
        self.replica: Any = SimpleNamespace(
            topic="t", index=index, topic_id=b"t" * 16, leader_epoch=3, log=SimpleNamespace(producers=ProducerStates())
        )
        self._next_offset = 0

    def requested(self, sequence: int = 0, producer: ProducerIdAndEpoch = PRODUCER) -> UnverifiedBatch:
        return UnverifiedBatch(self.replica, producer, sequence)

    def write(self, sequence: int = 0, producer: ProducerIdAndEpoch = PRODUCER) -> None:
        self._append(
            build_batch(
                [(0, None, b"x", ())], producer_id=producer.id, producer_epoch=producer.epoch,
                base_sequence=sequence, transactional=True,
            ),
            Origin.CLIENT, 0,
        )  # fmt: skip

    def end(self, gate: TransactionGate, epoch: int, version: int) -> None:
        """A marker arrives and is written."""
        gate.on_marker(self.replica, ProducerIdAndEpoch(PRODUCER.id, epoch), version)
        self._append(
            build_end_txn_marker(
                committed=True, producer_id=PRODUCER.id, producer_epoch=epoch, coordinator_epoch=0, timestamp=0
            ),
            Origin.COORDINATOR, version,
        )  # fmt: skip

    def _append(self, data: bytearray, origin: Origin, version: int) -> None:
        batch = BatchView(data)
        batch.set_offset_and_epoch(self._next_offset, 0)
        self.replica.log.producers.append(batch, origin, transaction_version=version)
        self._next_offset += 1


class Gate(TransactionGate):
    """A gate whose coordinator answers question after question as it was told to."""

    def __init__(self, *answers: Answer, retry_max_ms: int = 20) -> None:
        numbers = {
            "add.partitions.to.txn.retry.backoff.ms": 1,
            "add.partitions.to.txn.retry.backoff.max.ms": retry_max_ms,
        }
        config = SimpleNamespace(flag=lambda _: True, integer=numbers.__getitem__)
        replicas = SimpleNamespace(config=SimpleNamespace(security=None))
        services: Any = SimpleNamespace(loop=asyncio.get_running_loop(), config=config, node_id=1, replicas=replicas)
        super().__init__(services, None)  # type: ignore[arg-type]
        self.answers = list(answers)
        self.questions: list[set[TopicPartition]] = []

    async def _ask_once(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Any, abilities: Abilities
    ) -> Any:
        self.questions.append(set(partitions))
        await asyncio.sleep(0)
        code = self.answers.pop(0)() if len(self.answers) > 1 else self.answers[0]()
        return dict.fromkeys(partitions, code) if code else {}

    async def codes(self, abilities: Abilities, *batches: UnverifiedBatch) -> dict[TopicPartition, ErrorCode]:
        refused = await self.admit("shop", list(batches), abilities)
        return {name: error.code for name, error in refused.items()}


def yes() -> ErrorCode:
    return ErrorCode.NONE


def busy() -> ErrorCode:
    return ErrorCode.CONCURRENT_TRANSACTIONS


def test_the_marker_of_the_transaction_before_does_not_refuse_the_next_one():
    """A remote coordinator waits until the last transaction is complete, and its marker comes by meanwhile."""

    async def run():
        partition = Partition()
        partition.write(producer=ProducerIdAndEpoch(7, 4))

        def late_yes():
            partition.end(gate, 5, 2)
            return ErrorCode.NONE

        gate = Gate(late_yes)
        assert await gate.codes(ADDS, partition.requested()) == {}
        assert len(gate.questions) == 1, "the answer counts: nothing is asked twice"

    asyncio.run(run())


def test_a_marker_that_comes_while_the_coordinator_is_busy_does_not_refuse_either():
    async def run():
        partition = Partition()
        partition.write(producer=ProducerIdAndEpoch(7, 4))

        def busy_until_marked():
            partition.end(gate, 5, 2)
            return ErrorCode.CONCURRENT_TRANSACTIONS

        gate = Gate(busy, busy_until_marked, yes)
        assert await gate.codes(ADDS, partition.requested()) == {}
        assert len(gate.questions) == 3

    asyncio.run(run())


def test_an_end_that_cannot_be_told_apart_is_asked_about_again():
    """Markers of version 1, or of a coordinator that does not say: the epoch is that of every transaction."""

    async def run():
        partition = Partition()
        partition.write()

        def late_yes():
            partition.end(gate, 5, 0)
            return ErrorCode.NONE

        partition.end(gate := Gate(late_yes, yes), 5, 0)
        assert await gate.codes(ADDS, partition.requested(sequence=1)) == {}
        assert len(gate.questions) == 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("abilities", "epoch", "version", "code"),
    [
        (VERIFIES, 5, 0, ErrorCode.INVALID_TXN_STATE),
        (VERIFIES, 6, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ADDS, 6, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_batch_whose_own_transaction_has_ended_is_refused(abilities, epoch, version, code):
    async def run():
        partition = Partition()

        def late_yes():
            partition.end(gate, epoch, version)
            return ErrorCode.NONE

        gate = Gate(late_yes, yes)
        assert await gate.codes(abilities, partition.requested()) == {NAME: code}

    asyncio.run(run())


def test_an_answer_does_not_outlive_the_leader_that_asked():
    """Another leader may have written the end of the transaction meanwhile: the producer sends again."""

    async def run():
        for abilities in (ADDS, VERIFIES):
            partition = Partition()

            def late_yes(partition=partition):
                partition.replica.leader_epoch += 2
                return ErrorCode.NONE

            gate = Gate(late_yes, yes)
            assert await gate.codes(abilities, partition.requested()) == {NAME: ErrorCode.NOT_ENOUGH_REPLICAS}
            assert await gate.codes(abilities, partition.requested()) == {}

    asyncio.run(run())


def test_a_coordinator_that_stays_busy_is_reported_and_only_open_partitions_are_asked_about_again():
    async def run():
        first, second = Partition(0), Partition(1)
        gate = Gate(busy)
        assert await gate.codes(ADDS, first.requested()) == {NAME: ErrorCode.CONCURRENT_TRANSACTIONS}
        assert 2 < len(gate.questions) < 30
        gate = Gate(busy)
        assert await gate.codes(VERIFIES, first.requested()) == {NAME: ErrorCode.NOT_ENOUGH_REPLICAS}
        assert len(gate.questions) == 1

        class Half(Gate):
            async def _ask_once(self, transactional_id, producer, partitions, abilities):
                await super()._ask_once(transactional_id, producer, partitions, abilities)
                return {TopicPartition("t", 1): ErrorCode.CONCURRENT_TRANSACTIONS} if len(self.questions) == 1 else {}

        gate = Half(yes)
        assert await gate.codes(ADDS, first.requested(), second.requested()) == {}
        assert gate.questions == [{NAME, TopicPartition("t", 1)}, {TopicPartition("t", 1)}]

    asyncio.run(run())


def test_a_transaction_opened_meanwhile_needs_no_guard():
    """Two requests of one producer ask at once, as offsets of two groups do; the first one's batch opens it."""

    async def run():
        partition = Partition()

        def opened():
            partition.write()
            gate.on_written(partition.replica, PRODUCER.id)
            return ErrorCode.NONE

        gate = Gate(opened)
        assert await gate.codes(VERIFIES, partition.requested(sequence=1)) == {}

    asyncio.run(run())


def test_later_sequences_wait_for_the_one_that_was_refused():
    async def run():
        partition = Partition()
        gate = Gate(lambda: ErrorCode.NOT_COORDINATOR, yes)
        assert await gate.codes(ADDS, partition.requested(0)) == {NAME: ErrorCode.NOT_ENOUGH_REPLICAS}
        assert await gate.codes(ADDS, partition.requested(1)) == {NAME: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
        assert await gate.codes(ADDS, partition.requested(0)) == {}

    asyncio.run(run())


def test_a_coordinator_that_cannot_be_reached_is_an_answer():
    async def run():
        def gone():
            raise KlammError(ErrorCode.NETWORK_EXCEPTION)

        assert await Gate(gone).codes(ADDS, Partition().requested()) == {NAME: ErrorCode.NOT_ENOUGH_REPLICAS}

    asyncio.run(run())
