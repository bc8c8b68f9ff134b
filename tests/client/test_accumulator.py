"""Batches form, linger, are taken and requeued, without waits and without a clock."""

import random

import pytest

from klamm.client.errors import KafkaError
from klamm.client.producer.batch import Delivery
from klamm.client.producer.core.accumulator import Accumulator
from klamm.client.producer.core.identity import EPOCH_MAX, ProducerIdentity
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.records import BatchView, decode_batch

WHERE = TopicPartition("t", 0)


def row(value=b"v"):
    return (1_700_000_000_000, None, value, ())


@pytest.fixture
def accumulator():
    return Accumulator(batch_size=200, linger_s=5.0, memory_bytes=10_000)


def test_a_batch_is_due_when_full_or_lingered(accumulator):
    queue = accumulator.queue(WHERE)
    first = accumulator.append(queue, row(), 50, now=0.0)
    assert not accumulator.filled
    assert accumulator.next_due() == 5.0
    accumulator.tick(4.9)
    assert not accumulator.ready
    accumulator.append(queue, row(), 50, now=1.0)
    second = accumulator.append(queue, row(), 150, now=1.0)
    assert second is not first
    assert accumulator.filled
    accumulator.tick(1.0)
    assert accumulator.take(queue) is first
    assert accumulator.take(queue) is None
    accumulator.tick(6.0)
    assert accumulator.take(queue) is second


def test_an_open_batch_that_lingered_behind_a_full_one_is_not_forgotten(accumulator):
    queue = accumulator.queue(WHERE)
    accumulator.append(queue, row(), 130, now=0.0)
    accumulator.append(queue, row(), 130, now=0.0)
    accumulator.tick(10.0)
    assert accumulator.take(queue) is not None
    assert queue in accumulator.ready
    assert accumulator.take(queue) is not None
    assert queue not in accumulator.ready


def test_flushing_lets_nothing_linger(accumulator):
    queue = accumulator.queue(WHERE)
    accumulator.append(queue, row(), 10, now=0.0)
    accumulator.flushing += 1
    accumulator.tick(0.0)
    assert accumulator.take(queue) is not None


def test_memory_is_what_is_not_done(accumulator):
    queue = accumulator.queue(WHERE)
    batch = accumulator.append(queue, row(), 100, now=0.0)
    assert accumulator.used == batch.size
    accumulator.tick(9.0)
    accumulator.take(queue)
    accumulator.requeue(queue, batch)
    assert accumulator.used == batch.size
    accumulator.release(batch)
    accumulator.release(batch)
    assert accumulator.used == 0
    assert not accumulator.ready


def test_what_is_sent_again_goes_first_and_in_order(accumulator):
    queue, identity = accumulator.queue(WHERE), ProducerIdentity()
    identity.assign(7, 0, [])
    batches = []
    for _ in range(4):
        batch = accumulator.roll(queue, 0.0)
        batch.rows.append(row())
        accumulator.tick(10.0)
        accumulator.take(queue)
        identity.stamp(queue, batch, 1)
        batches.append(batch)
    assert [batch.base_sequence for batch in batches] == [0, 1, 2, 3]
    for index in (2, 0, 3, 1):
        accumulator.requeue(queue, batches[index])
    assert [accumulator.take(queue) for _ in range(4)] == batches


def test_sequences_go_round(accumulator):
    queue, identity = accumulator.queue(WHERE), ProducerIdentity()
    identity.assign(7, 0, [])
    queue.next_sequence = 0x7FFFFFFF
    batches = []
    for _ in range(2):
        batch = accumulator.roll(queue, 0.0)
        accumulator.tick(10.0)
        accumulator.take(queue)
        identity.stamp(queue, batch, 1)
        batches.append(batch)
    assert [batch.base_sequence for batch in batches] == [0x7FFFFFFF, 0]
    accumulator.requeue(queue, batches[1])
    accumulator.requeue(queue, batches[0])
    assert accumulator.take(queue) is batches[0]


def test_a_refused_batch_leaves_no_gap(accumulator):
    queue, identity = accumulator.queue(WHERE), ProducerIdentity()
    identity.assign(7, 0, [])
    batches = []
    for _ in range(3):
        batch = accumulator.roll(queue, 0.0)
        batch.rows = [row(), row()]
        accumulator.tick(10.0)
        accumulator.take(queue)
        identity.stamp(queue, batch, 2)
        batches.append(batch)
    assert not ProducerIdentity.is_first(queue, batches[1])
    ProducerIdentity.close_gap(queue, batches[0])
    accumulator.release(batches[0])
    assert [batch.base_sequence for batch in batches[1:]] == [0, 2]
    assert ProducerIdentity.is_first(queue, batches[1])
    assert queue.next_sequence == 4


def test_a_new_epoch_numbers_from_the_beginning(accumulator):
    queue, identity = accumulator.queue(WHERE), ProducerIdentity()
    identity.assign(7, 3, [])
    batch = accumulator.roll(queue, 0.0)
    batch.rows = [row()]
    accumulator.tick(10.0)
    accumulator.take(queue)
    queue.next_sequence = 55
    identity.stamp(queue, batch, 1)
    batch.seal(0, None, transactional=False)
    accumulator.requeue(queue, batch)
    assert identity.bump([queue])
    assert (batch.producer_epoch, batch.base_sequence, queue.next_sequence) == (4, 0, 1)
    batch.seal(0, None, transactional=False)
    view = BatchView(batch.data)
    view.check_crc()
    assert (view.producer_id, view.producer_epoch, view.base_sequence) == (7, 4, 0)
    identity.epoch = EPOCH_MAX
    assert not identity.bump([queue])
    assert not identity.known


def test_a_split_batch_tells_each_record_its_offset(accumulator):
    queue, identity = accumulator.queue(WHERE), ProducerIdentity()
    identity.assign(7, 0, [])
    batch = accumulator.roll(queue, 0.0)
    batch.rows = [row(b"%d" % index) for index in range(5)]
    accumulator.tick(10.0)
    accumulator.take(queue)
    identity.stamp(queue, batch, 5)
    batch.seal(0, None, transactional=False)
    promised = [Delivery(batch, index, 1) for index in range(5)]
    parts = batch.split()
    accumulator.replace(queue, batch, parts)
    assert [part.base_sequence for part in parts] == [0, 2]
    values = []
    for offset, part in ((100, parts[0]), (200, parts[1])):
        part.seal(0, None, transactional=False)
        values += [record.value for record in decode_batch(part.data)]
        assert not promised[0].done()
        accumulator.release(part)
        part.succeed(offset, -1)
    assert values == [b"0", b"1", b"2", b"3", b"4"]
    assert [delivery.metadata.offset for delivery in promised] == [100, 101, 200, 201, 202]


def test_giving_up_fails_what_waits(accumulator):
    queue = accumulator.queue(WHERE)
    batch = accumulator.append(queue, row(), 10, now=0.0)
    promise = Delivery(batch, 0, 1)
    accumulator.fail_waiting(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "over"))
    assert promise.done()
    with pytest.raises(KafkaError, match="over"):
        _ = promise.metadata
    assert accumulator.used == 0


def test_any_life_frees_all_memory_and_loses_nothing():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    accumulator = Accumulator(300, 1.0, 1 << 30)
    queues = [accumulator.queue(TopicPartition("t", index)) for index in range(3)]
    now, sent, done = 0.0, 0, 0
    flying = []
    for _ in range(2000):
        now += chance.random()
        match chance.randrange(4):
            case 0 | 1:
                accumulator.append(chance.choice(queues), row(), chance.randrange(1, 200), now)
                sent += 1
            case 2:
                accumulator.tick(now)
                for queue in list(accumulator.ready):
                    batch = accumulator.take(queue)
                    if batch is not None:
                        flying.append((queue, batch))
            case 3 if flying:
                queue, batch = flying.pop(chance.randrange(len(flying)))
                if chance.random() < 0.5:
                    accumulator.requeue(queue, batch)
                else:
                    accumulator.release(batch)
                    done += len(batch.rows)
    accumulator.flushing = 1
    while accumulator.incomplete:
        accumulator.tick(now)
        for queue in queues:
            while (batch := accumulator.take(queue)) is not None:
                flying.append((queue, batch))
        for _, batch in flying:
            accumulator.release(batch)
            done += len(batch.rows)
        flying.clear()
    assert done == sent
    assert accumulator.used == 0
    assert not accumulator.ready
