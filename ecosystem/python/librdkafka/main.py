"""librdkafka by the public API of confluent-kafka, in the roles and with the flags of the programs in `go`."""

import argparse
import json
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

STOP = threading.Event()
PRINTING = threading.Lock()


def report(event: str, **fields: Any) -> None:
    with PRINTING:
        # One write: print() sends the end of the line apart, and librdkafka's log lines come between.
        sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
        sys.stdout.flush()


def value(number: int, size: int) -> bytes:
    return f"{number:08d}.".encode().ljust(size, b"%c" % (97 + number % 26))


def is_committed(number: int) -> bool:
    return number % 5 != 4


def producer_config(s: argparse.Namespace) -> dict[str, Any]:
    return {
        "bootstrap.servers": s.bootstrap,
        "enable.idempotence": True,
        "message.max.bytes": s.batch_bytes,
        "linger.ms": 5,
        "queue.buffering.max.kbytes": 65536,
    }


def group_config(s: argparse.Namespace) -> dict[str, Any]:
    config = {
        "bootstrap.servers": s.bootstrap,
        "group.id": s.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 200,
    }
    if s.balancer == "server":  # the consumer protocol: the broker shares partitions out, and sets the times
        return {**config, "group.protocol": "consumer"}
    strategy = {"partition.assignment.strategy": s.balancer}
    return {**config, **strategy, "session.timeout.ms": 10000, "heartbeat.interval.ms": 500}


def send(producer: Producer, topic: str, partition: int, content: bytes, delivered: Callable) -> None:
    """Produce, and where the queue is full wait until there is a place."""
    while True:
        try:
            producer.produce(topic, content, partition=partition, on_delivery=delivered)
        except BufferError:
            producer.poll(0.1)
        else:
            return


def produce(s: argparse.Namespace) -> None:
    """Write numbered records, round robin, and report each acknowledgement, until `count` or SIGTERM."""
    failures: list[str] = []

    def delivered(number: int) -> Callable:
        def on_delivery(error: Any, message: Message) -> None:
            if error is None:
                report("acknowledged", number=number, partition=message.partition(), offset=message.offset())
            else:
                failures.append(f"record {number}: {error}")

        return on_delivery

    producer = Producer(producer_config(s))
    number = 0
    while number < s.count and not STOP.is_set():
        send(producer, s.topic, number % s.partitions, value(number, s.size), delivered(number))
        producer.poll(0)
        time.sleep(s.pause)
        number += 1
    producer.flush()
    if failures:
        sys.exit(failures[0])


def transactions(s: argparse.Namespace) -> None:
    """Several producers beside each other; each begins a transaction as soon as the one before has ended."""
    failures: list[str] = []

    def loop(transactional_id: str) -> None:
        try:
            transaction_loop(s, transactional_id)
        except (KafkaException, BufferError) as error:
            failures.append(f"{transactional_id}: {error}")

    threads = [threading.Thread(target=loop, args=(f"{s.id}-{index}",)) for index in range(s.producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit("\n".join(failures))


def transaction_loop(s: argparse.Namespace, transactional_id: str) -> None:
    producer = Producer({**producer_config(s), "transactional.id": transactional_id})
    producer.init_transactions(60)
    for number in range(s.count):
        producer.begin_transaction()
        for index in range(s.records):
            producer.produce(s.topic, f"{transactional_id}/{number}/{index}", partition=index % s.partitions)
        if is_committed(number):
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
        report("ended", id=transactional_id, number=number, committed=is_committed(number))


def member(s: argparse.Namespace) -> None:
    """Read as one of a group, report each record, commit at times; until SIGTERM."""

    def listener(event: str) -> Callable:
        def changed(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
            report(event, partitions=[partition.partition for partition in partitions])

        return changed

    consumer = Consumer(group_config(s))
    callbacks = {f"on_{name}": listener(event) for name, event in CHANGES.items()}
    consumer.subscribe([s.topic], **callbacks)
    try:
        while not STOP.is_set():
            messages = [message for message in consumer.consume(20, 0.5) if not problem(message)]
            for message in messages:
                content = message.value()
                report(
                    "record",
                    partition=message.partition(),
                    offset=message.offset(),
                    length=len(content),
                    crc=zlib.crc32(content),
                )
            if messages:
                commit(consumer)
    finally:
        consumer.close()


CHANGES = {"assign": "assigned", "revoke": "revoked", "lost": "lost"}


def commit(consumer: Consumer) -> None:
    """A commit that a rebalance or a dead coordinator refuses is made up for by the next one."""
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        report("commit refused", error=str(error))


def problem(message: Message) -> bool:
    if message.error() is not None:
        report("problem", error=str(message.error()))
        return True
    return False


def etl(s: argparse.Namespace) -> None:
    """Copy a topic into another, a few records with their offsets in each transaction; until SIGTERM."""
    consumer = Consumer({**group_config(s), "isolation.level": "read_committed"})
    consumer.subscribe([s.topic])
    producer = Producer({**producer_config(s), "transactional.id": s.id, "transaction.timeout.ms": 20000})
    producer.init_transactions(60)
    try:
        while not STOP.is_set():
            messages = [message for message in consumer.consume(s.records, 0.5) if not problem(message)]
            if messages:
                copy(s, consumer, producer, messages)
    finally:
        consumer.close()


def copy(s: argparse.Namespace, consumer: Consumer, producer: Producer, messages: list[Message]) -> None:
    producer.begin_transaction()
    try:
        for message in messages:
            producer.produce(s.to, message.value(), partition=message.partition())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 60
        )
        producer.commit_transaction(60)
        report("ended", id=s.id, committed=True, records=len(messages))
    except KafkaException as refusal:
        if not refusal.args[0].txn_requires_abort():
            raise
        producer.abort_transaction(60)
        report("ended", id=s.id, committed=False, records=len(messages), error=str(refusal))
        rewind(consumer)


def rewind(consumer: Consumer) -> None:
    """Go back to what is committed: what was read since has not been copied."""
    for position in consumer.committed(consumer.assignment(), 60):
        consumer.seek(TopicPartition(position.topic, position.partition, max(0, position.offset)))


def main() -> None:
    roles = {"produce": produce, "transactions": transactions, "member": member, "etl": etl}
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=roles)
    for name in ("-bootstrap", "-topic", "-to", "-group", "-id"):
        parser.add_argument(name, default="")
    parser.add_argument("-balancer", default="cooperative-sticky")
    parser.add_argument("-count", type=int, default=1 << 30)
    parser.add_argument("-size", type=int, default=20)
    parser.add_argument("-records", type=int, default=12)
    parser.add_argument("-partitions", type=int, default=6)
    parser.add_argument("-producers", type=int, default=3)
    parser.add_argument("-batch-bytes", type=int, default=1_000_000)
    parser.add_argument("-pause", type=lambda text: float(text.removesuffix("ms")) / 1000, default=0.0)
    settings = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: STOP.set())
    roles[settings.role](settings)
    report("done")


if __name__ == "__main__":
    main()
