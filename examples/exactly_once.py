"""The till: bills from orders, exactly once, even when it is killed.

Reads orders, writes a bill for each, and commits both in one transaction: the bill and the place up to which orders are
billed. A bill is seen by readers of committed data once, or the order is billed again after an abort, never twice.

    klamm up
    python examples/exactly_once.py fill     # puts orders on the table
    python examples/exactly_once.py bill     # stop it with Ctrl-C or kill it, and start it again
    python examples/exactly_once.py show     # every order has one bill, in order

Any number of `bill` may run at once: the orders are shared by the group. Each needs a transactional id of its own (its
second argument): a till that restarts under the same id ends what it left open, and fences its former self.
"""

import json
import sys

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ORDERS, BILLS, GROUP = "orders", "bills", "till"
PARTITIONS = 2
PRICES = {"soup": 7, "wine": 6, "strudel": 5}


def fill(address: str) -> None:
    """A few hundred orders, those of one table in one partition."""
    admin = AdminClient({"bootstrap.servers": address})
    wanted = [NewTopic(ORDERS, PARTITIONS, 1), NewTopic(BILLS, PARTITIONS, 1)]
    for future in admin.create_topics(wanted).values():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for number in range(300):
        table, dish = f"table-{number % 7}", list(PRICES)[number % len(PRICES)]
        producer.produce(ORDERS, json.dumps({"number": number, "table": table, "dish": dish}), key=table)
    producer.flush()
    print("300 orders are on the table")


def bill(address: str, transactional_id: str) -> None:
    """Consume, transform, produce, until every order of the partitions that this till was given is billed."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,  # the transaction commits the offsets
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "enable.partition.eof": True,
        }
    )
    producer = Producer({"bootstrap.servers": address, "transactional.id": transactional_id})
    producer.init_transactions()  # ends what an earlier self left open
    consumer.subscribe([ORDERS])
    billed = 0
    ended: set[int] = set()
    while not is_done(consumer, ended):
        orders = []
        for message in consumer.consume(25, 0.5):
            error = message.error()
            if error is None:
                orders.append(message)
                ended.discard(message.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        if not orders:
            continue
        if bill_once(consumer, producer, orders):
            billed += len(orders)
            print(f"{billed} orders billed", flush=True)
        else:
            ended.clear()
    consumer.close()


def is_done(consumer: Consumer, ended: set[int]) -> bool:
    """Whether the group has given out partitions, and all of ours were read to their end."""
    ours = {place.partition for place in consumer.assignment()}
    return bool(ours) and ours <= ended


def bill_once(consumer: Consumer, producer: Producer, orders: list[Message]) -> bool:
    """One transaction; False when it was aborted and the orders will come again."""
    producer.begin_transaction()
    try:
        for order in orders:
            content = json.loads(order.value())
            line = {"order": content["number"], "table": content["table"], "euro": PRICES[content["dish"]]}
            producer.produce(BILLS, json.dumps(line), key=order.key())
        places = {(order.topic(), order.partition()): order.offset() + 1 for order in orders}
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, partition, offset) for (topic, partition), offset in places.items()],
            consumer.consumer_group_metadata(),
        )
        commit(producer)
    except KafkaException as failure:
        if not failure.args[0].txn_requires_abort():
            raise  # this producer is over: another has its transactional id
        producer.abort_transaction()
        rewind(consumer)
        return False
    return True


def commit(producer: Producer) -> None:
    """Commit; an error that may pass is tried again."""
    while True:
        try:
            producer.commit_transaction()
        except KafkaException as failure:
            if not failure.args[0].retriable():
                raise
        else:
            return


def rewind(consumer: Consumer) -> None:
    """Back to where the last committed transaction ended."""
    for place in consumer.committed(consumer.assignment(), 10):
        consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))


def show(address: str) -> None:
    """Read the committed bills."""
    reader = Consumer(
        {"bootstrap.servers": address, "group.id": "guest", "isolation.level": "read_committed",
         "enable.auto.commit": False, "enable.partition.eof": True}
    )  # fmt: skip
    reader.assign([TopicPartition(BILLS, index, 0) for index in range(PARTITIONS)])
    lines, ended = [], 0
    while ended < PARTITIONS:
        message = reader.poll(10)
        if message is None:
            raise SystemExit("no bill can be read")
        if message.error() is None:
            lines.append(json.loads(message.value()))
        else:
            ended += 1
    reader.close()
    numbers = sorted(line["order"] for line in lines)
    print(f"{len(numbers)} bills, {len(set(numbers))} orders, {sum(line['euro'] for line in lines)} euro")


def main() -> None:
    wish = sys.argv[1] if len(sys.argv) > 1 else ""
    address = "127.0.0.1:9092"
    arguments = sys.argv[2:]
    if arguments and ":" in arguments[-1]:
        address = arguments.pop()
    if wish == "fill":
        fill(address)
    elif wish == "bill":
        bill(address, arguments[0] if arguments else "till-1")
    elif wish == "show":
        show(address)
    else:
        raise SystemExit("say fill, bill or show; an address as last argument if it is not 127.0.0.1:9092")


if __name__ == "__main__":
    main()
