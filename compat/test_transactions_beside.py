"""The same random questions about transactions to Apache Kafka and to Klamm: every answer must agree.

Ids of producers differ between the two, so they are compared by the order in which each broker first named them.
Between two questions both are given time to complete what was decided: what is left is decided by rules alone.
"""

import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from compat.brokers import KINDS, Broker
from compat.clients import JavaClient
from klamm.client.blocking_cluster import BlockingConnection
from klamm.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    list_offsets,
    offset_fetch,
    produce,
    txn_offset_commit,
)
from klamm.records.batch import build_batch

SEEDS = range(12)
STEPS = 120
BUSY = (14, 15, 16, 51)
TIMEOUT_MS = 60_000


class Answerer:
    """One broker; `ask_<kind>` puts one question and returns what can be compared."""

    def __init__(self, broker: Broker) -> None:
        self.connection = BlockingConnection("127.0.0.1", broker.port)
        self._order: dict[int, int] = {}
        self._real: dict[int, int] = {}

    def close(self) -> None:
        self.connection.close()

    def number(self, producer_id: int) -> int:
        """The place of a producer id among those this broker has named."""
        if producer_id < 0:
            return producer_id
        place = self._order.setdefault(producer_id, len(self._order))
        self._real[place] = producer_id
        return place

    def real(self, place: int) -> int:
        return self._real.get(place, place if place < 0 else 999_999 + place)

    def ask(self, question: tuple[Any, ...]) -> Any:
        answer: Any = getattr(self, f"ask_{question[0]}")(*question[1:])
        return answer

    def until_free(self, call: Any, code: Any) -> Any:
        for _ in range(400):
            answer = call()
            if code(answer) not in BUSY:
                break
            time.sleep(0.005)
        return answer

    def find(self, kind: int, key: str) -> None:
        request = find_coordinator.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        self.until_free(lambda: self.connection.ask(request, 4), lambda answer: answer.coordinators[0].error_code)

    def ask_init(self, name: str, place: int, epoch: int, version: int) -> Any:
        request = init_producer_id.InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=TIMEOUT_MS, producer_id=self.real(place), producer_epoch=epoch
        )
        reply = self.until_free(lambda: self.connection.ask(request, version), lambda answer: answer.error_code)
        return reply.error_code, self.number(reply.producer_id), reply.producer_epoch

    def ask_add(self, name: str, place: int, epoch: int, version: int, topic: str, partitions: list[int]) -> Any:
        request = add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=self.real(place),
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[add_partitions_to_txn.AddPartitionsToTxnTopic(name=topic, partitions=partitions)],
        )
        results = self.connection.ask(request, version).results_by_topic_v3_and_below[0].results_by_partition
        return sorted((result.partition_index, result.partition_error_code) for result in results)

    def ask_produce(
        self, name: str, place: int, epoch: int, version: int, topic: str, partition: int, sequence: int
    ) -> Any:
        records = build_batch(
            [(int(time.time() * 1000), None, b"x", ())],
            producer_id=self.real(place),
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = [produce.PartitionProduceData(index=partition, records=bytes(records))]
        request = produce.ProduceRequest(
            transactional_id=name,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[produce.TopicProduceData(name=topic, partition_data=data)],
        )
        reply = self.until_free(
            lambda: self.connection.ask(request, version),
            lambda answer: answer.responses[0].partition_responses[0].error_code,
        )
        return reply.responses[0].partition_responses[0].error_code

    def ask_end(self, name: str, place: int, epoch: int, version: int, committed: bool) -> Any:
        request = end_txn.EndTxnRequest(
            transactional_id=name, producer_id=self.real(place), producer_epoch=epoch, committed=committed
        )
        reply = self.connection.ask(request, version)
        return reply.error_code, self.number(reply.producer_id), reply.producer_epoch

    def ask_offsets(self, name: str, place: int, epoch: int, version: int, group: str) -> Any:
        request = add_offsets_to_txn.AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=self.real(place), producer_epoch=epoch, group_id=group
        )
        return self.connection.ask(request, version).error_code

    def ask_commit(self, name: str, place: int, epoch: int, version: int, group: str, topic: str, offset: int) -> Any:
        partition = txn_offset_commit.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        request = txn_offset_commit.TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=self.real(place),
            producer_epoch=epoch,
            topics=[txn_offset_commit.TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )
        return self.connection.ask(request, version).topics[0].partitions[0].error_code

    def ask_committed(self, group: str, topic: str) -> Any:
        wanted = offset_fetch.OffsetFetchRequestGroup(
            group_id=group, topics=[offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
        )
        request = offset_fetch.OffsetFetchRequest(groups=[wanted], require_stable=True)
        reply = self.until_free(lambda: self.connection.ask(request, 8), lambda answer: answer.groups[0].error_code)
        if reply.groups[0].error_code:
            return reply.groups[0].error_code
        part = reply.groups[0].topics[0].partitions[0]
        return part.committed_offset, part.error_code

    def ask_ends(self, topic: str, partition: int) -> Any:
        """The last stable offset and the high watermark."""
        ends = []
        for isolation in (1, 0):
            partitions = [list_offsets.ListOffsetsPartition(partition_index=partition, timestamp=-1)]
            request = list_offsets.ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation,
                topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=partitions)],
            )
            ends.append(self.connection.ask(request, 7).topics[0].partitions[0].offset)
        return ends

    def ask_producers(self, topic: str, partition: int) -> Any:
        request = describe_producers.DescribeProducersRequest(
            topics=[describe_producers.TopicRequest(name=topic, partition_indexes=[partition])]
        )
        producers = self.connection.ask(request).topics[0].partitions[0].active_producers
        return sorted(
            (self.number(p.producer_id), p.producer_epoch, p.last_sequence, p.current_txn_start_offset)
            for p in producers
        )

    def at_rest(self, name: str) -> Any:
        """The state of a transactional id once nothing is being completed."""
        request = describe_transactions.DescribeTransactionsRequest(transactional_ids=[name])
        for _ in range(400):
            state = self.connection.ask(request).transaction_states[0]
            if not state.transaction_state.startswith("Prepare"):
                break
            time.sleep(0.005)
        partitions = sorted((topic.topic, *sorted(topic.partitions)) for topic in state.topics)
        producer = self.number(state.producer_id) if not state.error_code else None
        return state.error_code, state.transaction_state, producer, state.producer_epoch, partitions


class QuestionGenerator:
    """Makes up questions from a seed, and from the answers to earlier ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = [f"old-{seed}", f"new-{seed}"]
        """Clients of version 1 and of version 2."""
        self.topic = f"beside-{seed}"
        self.group = f"group-{seed}"
        self._known: dict[str, list[tuple[int, int]]] = {name: [(-1, -1)] for name in self.names}
        self._sequences: dict[tuple[int, int, int], int] = {}

    def question(self, step: int) -> tuple[str, tuple[Any, ...]]:
        """The transactional id it is about, and the question."""
        chance = self.random
        name = chance.choice(self.names)
        known = self._known[name]
        own, epoch = place, _ = known[-1] if chance.random() < 0.75 else chance.choice(known)
        if place >= 0 and chance.random() < 0.05:
            epoch += chance.choice([-1, 1])
        if place >= 0 and chance.random() < 0.03:
            place += 1
        kind = chance.random()
        producer = (name, place, epoch)
        if len(known) == 1 or kind < 0.10:
            anonymous = epoch < 0 or place < 0 or chance.random() < 0.6
            return name, ("init", name, *((-1, -1) if anonymous else (place, epoch)), chance.choice([3, 4, 5]))
        partition = chance.randrange(2)
        if kind < 0.25:
            wanted = chance.choice([[0], [1], [0, 1], [0, 5]])
            return name, ("add", *producer, chance.choice([1, 3]), self.topic, wanted)
        if kind < 0.55:
            # Kafka keeps a batch of an unknown producer or a future epoch, and then refuses the next valid one.
            return name, self._produce(name, own, min(epoch, known[-1][1]), partition)
        if kind < 0.75:
            return name, ("end", *producer, chance.choice([1, 4, 5, 5]), chance.random() < 0.5)
        if kind < 0.80:
            return name, ("offsets", *producer, chance.choice([1, 3]), self.group)
        if kind < 0.88:
            return name, ("commit", *producer, chance.choice([3, 4, 5]), self.group, self.topic, step)
        if kind < 0.92:
            return name, ("committed", self.group, self.topic)
        return name, ("ends" if kind < 0.96 else "producers", self.topic, partition)

    def _produce(self, name: str, place: int, epoch: int, partition: int) -> tuple[Any, ...]:
        sequence = self._sequences.get((place, epoch, partition), 0)
        if self.random.random() < 0.1:
            sequence = max(0, sequence + self.random.choice([-1, 1]))
        version = self.random.choice([9, 11]) if name == self.names[0] else 12
        return "produce", name, place, epoch, version, self.topic, partition, sequence

    def record_answer(self, name: str, question: tuple[Any, ...], answer: Any) -> None:
        if question[0] in ("init", "end") and answer[0] == 0 and answer[1] >= 0:
            self._known[name].append((answer[1], answer[2]))
        elif question[0] == "produce" and answer == 0:
            self._sequences[question[2], question[3], question[6]] = question[7] + 1


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    brokers = [KINDS[kind](tmp_path_factory.mktemp(kind)) for kind in ("kafka", "klamm")]
    try:
        yield [broker.start() for broker in brokers]
    finally:
        for broker in brokers:
            broker.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_answer_agrees(java: JavaClient, both: list[Broker], seed: int) -> None:
    mind = QuestionGenerator(seed)
    with contextlib.ExitStack() as stack:
        answerers = [stack.enter_context(contextlib.closing(Answerer(broker))) for broker in both]
        for broker, answerer in zip(both, answerers, strict=True):
            java.create(broker.bootstrap, mind.topic, 2)
            answerer.find(0, mind.group)
            for name in mind.names:
                answerer.find(1, name)
            answerer.ask_committed(mind.group, mind.topic)
        time.sleep(0.5)  # Kafka answers before the new partitions are led
        questions: list[Any] = []
        for step in range(STEPS):
            name, question = mind.question(step)
            answers = [(answerer.ask(question), answerer.at_rest(name)) for answerer in answerers]
            questions.append((question, answers[0]))
            history = "\n".join(map(str, questions))
            assert answers[0] == answers[1], f"seed {seed}, step {step}, {question}\n{history}"
            mind.record_answer(name, question, answers[0][0])
