"""What a group promises, with the settings people use: the bank, the shop, at most once, at least once.

The consumers crash at the worst moment: between reading and committing, whichever comes first.
"""

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness.wire import unique


@pytest.fixture
def topic(klamm):
    name = unique("orders")
    admin = AdminClient({"bootstrap.servers": klamm.bootstrap, "log_level": 2})
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(20)
    return name


def write(klamm, topic, pairs):
    producer = Producer({"bootstrap.servers": klamm.bootstrap, "log_level": 2, "acks": "all"})
    for key, value in pairs:
        producer.produce(topic, value, key)
    assert producer.flush(20) == 0


def consumer(klamm, group, *topics, **settings):
    made = Consumer(
        {
            "bootstrap.servers": klamm.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 2,
            **settings,
        }
    )
    if topics:
        made.subscribe(list(topics))
    return made


def read(reader, count, seconds=20.0):
    """At most `count` messages; fewer when nothing more comes for a while."""
    messages = []
    deadline = time.monotonic() + seconds
    while len(messages) < count and time.monotonic() < deadline:
        message = reader.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


def test_the_bank_every_service_reads_every_payment_and_the_instances_of_one_share_them(klamm, topic):
    payments = {f"payment-{i}".encode() for i in range(90)}
    write(klamm, topic, [(str(i % 10), f"payment-{i}") for i in range(90)])
    ledger = [consumer(klamm, f"ledger-{topic}", topic) for _ in range(2)]
    fraud = consumer(klamm, f"fraud-{topic}", topic)
    shared = [[], []]
    deadline = time.monotonic() + 30
    while sum(map(len, shared)) < 90 and time.monotonic() < deadline:
        for i, instance in enumerate(ledger):
            message = instance.poll(0.05)
            if message is not None and message.error() is None:
                shared[i].append(message)
                instance.commit(message, asynchronous=False)
    values = [message.value() for messages in shared for message in messages]
    assert set(values) == payments
    assert {m.value() for m in read(fraud, 90)} == payments
    for member in (*ledger, fraud):
        member.close()


def test_the_shop_orders_of_one_customer_are_read_in_their_order(klamm, topic):
    customers = [f"customer-{i}" for i in range(12)]
    write(klamm, topic, [(customer, f"{customer}:{n}") for n in range(10) for customer in customers])
    reader = consumer(klamm, f"shop-{topic}", topic)
    seen = {}
    partitions = {}
    for message in read(reader, 120):
        customer, _, n = message.value().decode().partition(":")
        seen.setdefault(customer, []).append(int(n))
        partitions.setdefault(customer, set()).add(message.partition())
    assert seen == {customer: list(range(10)) for customer in customers}
    assert {len(used) for used in partitions.values()} == {1}, "one customer, one partition"
    reader.close()


def test_at_most_once_commit_first_then_work_loses_what_was_in_hand(klamm, topic):
    write(klamm, topic, [("k", str(i)) for i in range(10)])
    group = f"most-{topic}"
    worked = []
    first = consumer(klamm, group, topic)
    for message in read(first, 4):
        first.commit(message, asynchronous=False)
        if len(worked) == 3:
            break  # the process dies here: committed, not worked on
        worked.append(message.value())
    first.close()
    second = consumer(klamm, group, topic)
    worked += [message.value() for message in read(second, 6)]
    second.close()
    assert worked == [str(i).encode() for i in range(10) if i != 3]


def test_at_least_once_work_first_then_commit_repeats_what_was_in_hand(klamm, topic):
    write(klamm, topic, [("k", str(i)) for i in range(10)])
    group = f"least-{topic}"
    worked = []
    first = consumer(klamm, group, topic)
    for message in read(first, 4):
        worked.append(message.value())
        if len(worked) == 4:
            break  # the process dies here: worked on, not committed
        first.commit(message, asynchronous=False)
    first.close()
    second = consumer(klamm, group, topic)
    worked += [message.value() for message in read(second, 7)]
    second.close()
    assert worked == [b"0", b"1", b"2", b"3", b"3", *(str(i).encode() for i in range(4, 10))]


def test_reading_again_from_the_beginning_is_a_matter_of_offsets(klamm, topic):
    write(klamm, topic, [("k", str(i)) for i in range(5)])
    group = f"again-{topic}"
    first = consumer(klamm, group, topic)
    messages = read(first, 5)
    first.commit(asynchronous=False)
    first.close()
    partition = messages[0].partition()
    simple = consumer(klamm, group)
    simple.commit(offsets=[TopicPartition(topic, partition, 2, "from two again")], asynchronous=False)
    position = simple.committed([TopicPartition(topic, partition)], 20)[0]
    assert (position.offset, position.metadata) == (2, "from two again")
    simple.close()
    second = consumer(klamm, group, topic)
    assert [message.value() for message in read(second, 3)] == [b"2", b"3", b"4"]
    second.close()
