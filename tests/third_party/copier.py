"""Copies one topic to another in transactions, as a process that kills itself now and then, at every kind of step.

The flow is the one its client's documentation shows: consume, transform, produce, send the offsets along, commit.
Ends with 0 when everything is copied, with 3 when its producer is fenced or beyond help and a new process takes over.

`metadata.recovery.strategy=none`, because librdkafka 2.16 stands still otherwise. When its only broker is away, it
begins anew from the bootstrap servers and gives up all its handles of brokers (REBOOTSTRAP and DECOMMISSION in its
debug log), but something keeps one of them, perhaps what remembers the group's coordinator: "Handle is terminating in
state TRY_CONNECT: 3 refcnts", for as long as the process lives. Everything sent is answered;
TxnOffsetCommit is never sent, and send_offsets_to_transaction does not return, its timeout passed or not.
"""

import os
import random
import signal
import sys
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

QUIET = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "metadata.recovery.strategy": "none",
}
BEYOND_HELP = 3
CALL_S = 4.0
PATIENCE_S = 30.0


class Copier:
    def __init__(self, bootstrap: str, source: str, target: str, name: str, records: int, partitions: int) -> None:
        self.source, self.target = source, target
        self.records = records
        self.partitions = partitions
        self.producer = Producer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": 20_000,
                "linger.ms": 0,
            }
        )
        self.consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        patiently(lambda: self.producer.init_transactions(CALL_S))
        self.rewind()

    def rewind(self) -> None:
        """Go to where the last committed transaction ended."""
        partitions = [TopicPartition(self.source, index) for index in range(self.partitions)]
        positions = patiently(lambda: self.consumer.committed(partitions, CALL_S))
        self.place = {part.partition: max(part.offset, 0) for part in positions}
        self.consumer.assign([TopicPartition(self.source, index, offset) for index, offset in self.place.items()])

    def step(self, chance: random.Random) -> None:
        messages = [m for m in self.consumer.consume(chance.randrange(1, 40), 0.3) if m.error() is None]
        if not messages:
            return
        self.producer.begin_transaction()
        for message in messages:
            self.producer.produce(self.target, b"<" + message.value() + b">", partition=message.partition())
            self.place[message.partition()] = message.offset() + 1
        maybe_die(chance)
        offsets = [TopicPartition(self.source, index, offset) for index, offset in self.place.items()]
        group = self.consumer.consumer_group_metadata()
        again(lambda: self.producer.send_offsets_to_transaction(offsets, group, CALL_S))
        maybe_die(chance)
        if chance.random() < 0.15:
            self.abort()
        else:
            again(lambda: self.producer.commit_transaction(CALL_S))
        maybe_die(chance)

    def abort(self) -> None:
        patiently(lambda: self.producer.abort_transaction(CALL_S))
        self.rewind()

    def run(self, chance: random.Random) -> None:
        moved = time.monotonic()
        while any(offset < self.records for offset in self.place.values()):
            if time.monotonic() - moved > PATIENCE_S:
                os._exit(BEYOND_HELP)
            before = dict(self.place)
            try:
                self.step(chance)
            except KafkaException as failure:
                if not failure.args[0].txn_requires_abort():
                    os._exit(BEYOND_HELP)
                self.abort()
            if self.place != before:
                moved = time.monotonic()


def maybe_die(chance: random.Random) -> None:
    """Vanish without a word."""
    if chance.random() < 0.05:
        os.kill(os.getpid(), signal.SIGKILL)


def again(call) -> None:
    """Call until it succeeds, while the error is retriable."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()
        except KafkaException as failure:
            if not failure.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


def patiently(call):
    """Try again what may be tried again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except KafkaException as failure:
            if time.monotonic() > deadline or failure.args[0].fatal():
                os._exit(BEYOND_HELP)


if __name__ == "__main__":
    bootstrap, source, target, name, records, partitions, seed = sys.argv[1:]
    Copier(bootstrap, source, target, name, int(records), int(partitions)).run(random.Random(int(seed)))
    os._exit(0)
