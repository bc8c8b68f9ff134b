"""Parts of tables: every row once, none too large, the same bytes whatever buffer they are built in."""

import random

import pyarrow as pa
import pytest

from client.lying_broker import LyingBroker
from client.test_faults import produced, some_id
from harness.client_stories import PATIENCE_S
from klamm.client import Producer
from klamm.client.core.buffer_pool import BufferPool
from klamm.client.errors import BufferFullError, KafkaError, SerializationError
from klamm.client.producer.batch import Batch
from klamm.client.producer.tables import TablePart, _parts
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.records import BatchView, iter_batches
from klamm.records.arrow import ArrowRows

PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def some_rows(chance, count):
    def data(most):
        return None if chance.random() < 0.2 else chance.randbytes(chance.randrange(most))

    headers = [[("h" * chance.randrange(1, 9), data(20)) for _ in range(chance.randrange(3))] for _ in range(count)]
    columns = {
        "key": pa.array([data(30) for _ in range(count)], pa.binary()),
        "value": pa.array([data(300) for _ in range(count)], pa.binary()),
        "headers": pa.array(headers, PAIRS),
    }
    return pa.RecordBatch.from_pydict(columns)


def test_every_row_is_in_one_part_and_none_is_too_large():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(20):
        start = chance.randrange(5)
        table = some_rows(chance, chance.randrange(start + 1, 200)).slice(start)
        limit = chance.choice([0, 200, 1000, 5000, 1 << 20])
        buffer_pool = BufferPool(2)
        rows_sent = []
        for part in _parts(ArrowRows(table, 7), limit, buffer_pool):
            data = part.encode()
            assert len(data) <= 61 + part.size
            assert len(data) <= limit or part.count == 1
            rows_sent += [
                (decode_row[2], decode_row[3], list(decode_row[4])) for decode_row in BatchView(data).decode_rows()
            ]
            part.release(data)
        wanted = [
            (row["key"], row["value"], [(header["key"], header["value"]) for header in row["headers"]])
            for row in table.to_pylist()
        ]
        assert rows_sent == wanted


def test_rows_of_one_size_are_cut_where_they_would_be_without_a_guess():
    rows = ArrowRows(pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 79] * 1000)}), 7)
    assert [part.count for part in _parts(rows, 61 + 30 * 100, BufferPool(1))] == [30] * 33 + [10]


def test_a_buffer_with_a_view_is_not_reused():
    buffer_pool = BufferPool(2)
    first, second = bytearray(100), bytearray(200)
    buffer_pool.give(first)
    buffer_pool.give(second)
    view = memoryview(second)
    assert buffer_pool.take(50) is first
    assert buffer_pool.take(50) is None
    view.release()
    assert buffer_pool.take(201) is None
    assert buffer_pool.take() is second
    for size in (1, 3, 2):
        buffer_pool.give(bytearray(size))
    assert [len(buffer_pool.take()), len(buffer_pool.take()), buffer_pool.take()] == [2, 3, None]


def test_a_part_is_built_where_the_last_one_was():
    buffer_pool = BufferPool(1)
    rows = ArrowRows(pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 1000] * 20)}), 7)
    part = TablePart(rows, 0, 10, buffer_pool)
    data = part.encode()
    part.release(data)
    assert TablePart(rows, 10, 20, buffer_pool).encode() is data


def test_what_was_handed_over_is_made_again_when_it_is_needed():
    buffer_pool = BufferPool(2)
    rows = ArrowRows(some_rows(random.Random(5), 40), 7)
    batch, other = (Batch.of_part(TopicPartition("t", 0), 0.0, TablePart(rows, 0, 40, buffer_pool)) for _ in range(2))
    batch.producer_id, batch.producer_epoch, batch.base_sequence = 9, 1, 100
    batch.seal(0, None, transactional=True)
    first = bytes(batch.data)
    view = memoryview(batch.data)  # what a connection has not sent yet
    batch.release_buffer()
    assert batch.data is None
    other.seal(0, None, transactional=False)
    assert bytes(view) == first
    del view
    batch.seal(0, None, transactional=True)
    assert bytes(batch.data) == first
    batch.release_buffer()
    halves = batch.split()
    wanted = [decode_row[1:5] for decode_row in BatchView(first).decode_rows()]
    assert [row for halve in halves for row in halve.rows] == [tuple(row) for row in wanted]
    assert [halve.base_sequence for halve in halves] == [100, 120]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_part_that_is_too_large_for_the_broker_is_sent_in_smaller_ones(codec):
    taken = []

    def answer(request, version):
        [batch] = iter_batches(request.topic_data[0].partition_data[0].records)
        if batch.record_count > 100:
            return produced(ErrorCode.MESSAGE_TOO_LARGE)(request, version)
        taken.extend(row[3] for row in batch.decode_rows())
        return produced(ErrorCode.NONE)(request, version)

    values = [b"%d" % index for index in range(1000)]
    with (
        LyingBroker({"InitProducerId": some_id, "Produce": answer}) as broker,
        Producer(bootstrap_servers=broker.bootstrap, batch_size=1 << 20, compression_type=codec) as producer,
    ):
        promised = producer.send_arrow("t", pa.table({"value": values}))
        producer.flush(PATIENCE_S)
        assert all(delivery.exception() is None for delivery in promised)
    assert taken == values


def test_a_full_buffer_makes_send_arrow_wait_and_then_fail():
    table = pa.table({"value": pa.array([b"x" * 1000] * 1000)})
    with LyingBroker({"InitProducerId": some_id, "Produce": lambda *_: None}) as broker:
        producer = Producer(
            bootstrap_servers=broker.bootstrap, buffer_memory=100_000, max_block_ms=300, batch_size=10_000
        )
        try:
            with pytest.raises(BufferFullError, match=r"buffer\.memory=100000") as raised:
                producer.send_arrow("t", table)
            assert producer._accumulator.used <= 100_000 + 10_000
        finally:
            producer.close(0)
        accepted = raised.value.deliveries  # what may be stored is not forgotten
        assert len(accepted) >= 9
        assert all(isinstance(delivery.exception(), KafkaError) for delivery in accepted)
        assert f"{len(accepted)} batches were buffered" in raised.value.__notes__[0]


def test_a_full_buffer_opens_for_the_rest_of_a_table():
    table = pa.table({"value": pa.array([b"x" * 1000] * 500)})
    with (
        LyingBroker({"InitProducerId": some_id, "Produce": produced(ErrorCode.NONE)}) as broker,
        Producer(bootstrap_servers=broker.bootstrap, buffer_memory=50_000, batch_size=5000) as producer,
    ):
        promised = producer.send_arrow("t", table)
        producer.flush(PATIENCE_S)
        assert all(delivery.done() for delivery in promised)
        assert producer._accumulator.used == 0


def test_rows_that_cannot_be_written_fail_their_promise_and_no_other():
    unnamed = pa.table({"value": pa.array([b"x"]), "headers": pa.array([[{"key": None, "value": b"y"}]], PAIRS)})
    with (
        LyingBroker({"InitProducerId": some_id, "Produce": produced(ErrorCode.NONE)}) as broker,
        Producer(bootstrap_servers=broker.bootstrap) as producer,
    ):
        (promise,) = producer.send_arrow("t", unnamed)
        with pytest.raises(SerializationError, match="name"):
            promise.result(PATIENCE_S)
        with pytest.raises(ValueError, match="no timestamp"):
            producer.send("t", b"x", timestamp=1 << 70)
        producer.send("t", b"y").result(PATIENCE_S)
        assert producer._accumulator.used == 0
