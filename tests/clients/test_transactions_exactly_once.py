"""Exactly once from topic to topic: whatever crashes, the output is the input, once, in order per partition.

The copier is the flow its client's documentation shows: consume, transform, produce, send the offsets along, commit.
"""

import contextlib
import os
import random
import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from harness import KlammProcess, Wire, batch, unique

from .transactional import QUIET, read_all

SEED = int(os.environ.get("KLAMM_SEED", random.SystemRandom().randrange(2**32)))
PARTITIONS = 2
RECORDS = 300
PATIENCE_S = 90.0


class Copier:
    """Copies one topic to another in transactions; it may die at every step and come back."""

    def __init__(self, bootstrap: str, source: str, target: str, chance: random.Random) -> None:
        self.bootstrap = bootstrap
        self.source = source
        self.target = target
        self.chance = chance
        self.group = unique("copier")
        self.transactional_id = unique("copier")
        self.deaths = 0
        self.aborts = 0
        self.start()

    def start(self) -> None:
        self.producer = Producer(
            {
                **QUIET,
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": 20_000,
                "linger.ms": 0,
            }
        )
        self.consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        patiently(lambda: self.producer.init_transactions(10))
        self.rewind()

    def rewind(self) -> None:
        """Go to where the last committed transaction ended."""
        asked = [TopicPartition(self.source, index) for index in range(PARTITIONS)]
        found = patiently(lambda: self.consumer.committed(asked, 10))
        self.place = {part.partition: max(part.offset, 0) for part in found}
        self.consumer.assign([TopicPartition(self.source, index, offset) for index, offset in self.place.items()])

    def done(self) -> bool:
        return all(offset >= RECORDS for offset in self.place.values())

    def die(self) -> None:
        """Vanish in the middle of whatever it was, and begin again under the same transactional id."""
        self.deaths += 1
        self.consumer.close()
        del self.producer
        self.start()

    def step(self) -> None:
        messages = [m for m in self.consumer.consume(self.chance.randrange(1, 40), 0.3) if m.error() is None]
        if not messages:
            return
        self.producer.begin_transaction()
        for message in messages:
            self.producer.produce(self.target, b"<" + message.value() + b">", partition=message.partition())
            self.place[message.partition()] = message.offset() + 1
        if self.chance.random() < 0.08:
            self.die()
            return
        offsets = [TopicPartition(self.source, index, offset) for index, offset in self.place.items()]
        self.producer.send_offsets_to_transaction(offsets, self.consumer.consumer_group_metadata(), 20)
        if self.chance.random() < 0.08:
            self.die()
            return
        if self.chance.random() < 0.15:
            self.abort()
            return
        self.commit()

    def commit(self) -> None:
        while True:
            try:
                self.producer.commit_transaction(20)
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.retriable():
                    continue
                if error.txn_requires_abort():
                    self.abort()
                    return
                raise
            return

    def abort(self) -> None:
        self.aborts += 1
        patiently(lambda: self.producer.abort_transaction(20))
        self.rewind()

    def run(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.done():
            assert time.monotonic() < deadline, f"the copier is at {self.place}"
            try:
                self.step()
            except KafkaException as failure:
                if failure.args[0].txn_requires_abort():
                    self.abort()
                else:
                    self.die()
        self.consumer.close()


def patiently(call):
    """Try again what may be tried again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except KafkaException as failure:
            if time.monotonic() > deadline or failure.args[0].fatal():
                raise


@pytest.mark.parametrize("kills", [0, 3], ids=["steady broker", "kill -9"])
def test_a_copy_is_exact_whoever_dies(tmp_path, kills):
    print(f"KLAMM_SEED={SEED}")
    chance = random.Random(SEED)
    with KlammProcess(tmp_path) as klamm:
        with Wire(klamm.port) as wire:
            source, target = wire.create_topic(partitions=PARTITIONS), wire.create_topic(partitions=PARTITIONS)
            values = [[b"%d/%d" % (index, number) for number in range(RECORDS)] for index in range(PARTITIONS)]
            for index, mine in enumerate(values):
                assert wire.produce(source, batch(*mine), partition=index).error_code == 0
        copier = Copier(klamm.bootstrap, source, target, chance)
        stop = threading.Event()

        def kill_now_and_then() -> None:
            for _ in range(kills):
                if stop.wait(0.2 + chance.random()):
                    return
                klamm.restart(clean=False)

        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        try:
            copier.run()
        finally:
            stop.set()
            killer.join()
        print(f"{copier.deaths} deaths, {copier.aborts} aborts")
        expected = [[b"<" + value + b">" for value in mine] for mine in values]
        assert read_all(klamm.bootstrap, target, partitions=PARTITIONS) == expected


def test_a_decided_transaction_is_completed_after_a_crash(tmp_path):
    """The broker dies right after commits were answered; nothing of them is missing afterwards, nothing hangs."""
    with KlammProcess(tmp_path) as klamm:
        with Wire(klamm.port) as wire:
            topic = wire.create_topic(partitions=4)
        expected = []
        for round_number in range(3):
            producer = Producer({**QUIET, "bootstrap.servers": klamm.bootstrap, "transactional.id": "crash"})
            patiently(lambda producer=producer: producer.init_transactions(10))
            producer.begin_transaction()
            for index in range(4):
                producer.produce(topic, b"%d" % round_number, partition=index)
            producer.commit_transaction(20)
            klamm.kill9()
            expected.append(b"%d" % round_number)
            with contextlib.suppress(KafkaException):
                producer.purge()
            klamm.start()
        assert read_all(klamm.bootstrap, topic, partitions=4) == [expected] * 4
        with Wire(klamm.port) as wire:
            states = wire.call("list_transactions", 0).transaction_states
            assert {each.transaction_state for each in states} == {"CompleteCommit"}
