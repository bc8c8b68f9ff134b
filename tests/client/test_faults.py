"""Brokers that stop, stall, lose answers and lie: nothing hangs, nothing grows, nothing is lost or doubled."""

import asyncio
import random
import struct
import threading
import time

import pyarrow as pa
import pytest

import klamm
import klamm.testing
from client.lying_broker import LyingBroker
from harness import CuttingProxy, KlammProcess, unique
from harness.client_stories import PATIENCE_S, read, read_all, reader, topic, until
from klamm.client import Admin, AsyncProducer, Producer
from klamm.client.errors import (
    BrokersUnreachableError,
    BufferFullError,
    CorruptRecordError,
    DisconnectedError,
    KafkaError,
    KafkaTimeoutError,
)
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from klamm.protocol.messages.init_producer_id import InitProducerIdResponse
from klamm.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from klamm.records import build_batch

NO_BROKER = "127.0.0.1:1"


def fetched(records, *, offset_error=ErrorCode.NONE):
    def answer(request, _version):
        topics = [
            FetchableTopicResponse(
                topic_id=topic.topic_id,
                topic=topic.topic,
                partitions=[
                    PartitionData(
                        partition_index=part.partition,
                        error_code=offset_error,
                        high_watermark=100,
                        last_stable_offset=100,
                        records=records,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return FetchResponse(error_code=ErrorCode.NONE, session_id=0, responses=topics)

    return answer


def produced(code):
    def answer(request, _version):
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[
                        PartitionProduceResponse(index=part.index, error_code=code, base_offset=-1)
                        for part in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    return answer


def some_id(_request, _version):
    return InitProducerIdResponse(error_code=ErrorCode.NONE, producer_id=1, producer_epoch=0)


def reader_of(bootstrap_servers, **settings):
    return reader(bootstrap_servers, **settings)


def test_an_unreachable_broker_is_reported_at_once():
    for make in (Admin, Producer, reader_of):
        with pytest.raises(BrokersUnreachableError, match=r"127\.0\.0\.1:1"):
            make(bootstrap_servers=NO_BROKER, bootstrap_timeout_ms=0)


@pytest.mark.parametrize("make", [Admin, Producer, reader_of])
def test_an_unreachable_broker_is_waited_for_and_named(make, caplog):
    with pytest.raises(BrokersUnreachableError, match=r"127\.0\.0\.1:1: .*gave up after 1\.5 s \(bootstrap\.t"):
        make(bootstrap_servers=NO_BROKER, bootstrap_timeout_ms=1500, reconnect_backoff_max_ms=100)
    assert "waiting for a broker, at most 1.5 s (bootstrap.timeout.ms): cannot connect to 127.0.0.1:1" in caplog.text


@pytest.mark.parametrize("make", [Admin, Producer, reader_of, "read_topic"])
def test_a_broker_that_starts_later_is_waited_for(make):
    """The older tests started brokers before clients; beside a broker that starts with its programs, all failed."""
    with klamm.testing.broker() as broker:
        topic = broker.topic()
        broker.stop()
        starting = threading.Timer(1.0, broker.start)
        starting.start()
        if make == "read_topic":
            assert klamm.read_topic(topic, bootstrap=broker.bootstrap, timeout_s=60).num_rows == 0
        else:
            make(bootstrap_servers=broker.bootstrap).close()
        starting.join()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">i", 0x7FFFFFFF) + b"x",
        struct.pack(">i", -5),
        b"\0\0\0\x08" + b"\xff" * 8,
    ],
    ids=["http", "huge", "negative", "other answer"],
)
def test_something_else_at_the_port(nonsense):
    with LyingBroker({"ApiVersions": lambda *_: nonsense}) as broker, pytest.raises(DisconnectedError):
        Admin(bootstrap_servers=broker.bootstrap)


def test_a_silent_broker_is_given_up():
    with LyingBroker({"Metadata": lambda *_: None}) as broker, pytest.raises(KafkaError):
        Admin(bootstrap_servers=broker.bootstrap, request_timeout_ms=200, bootstrap_timeout_ms=1000)


def poisons():
    whole = bytes(build_batch([(1, b"k", b"v" * 50, ()) for _ in range(10)]))
    flipped = bytearray(whole)
    flipped[-3] ^= 0xFF
    liar = bytearray(whole)
    liar[57:61] = struct.pack(">i", 0x7FFFFFFF)
    long = bytearray(whole)
    long[8:12] = struct.pack(">i", 5)
    magic = bytearray(whole)
    magic[16] = 9
    offsets = bytearray(whole)
    offsets[0:8] = struct.pack(">q", -50)
    return {
        "flipped bit": bytes(flipped),
        "count": bytes(liar),
        "length": bytes(long),
        "magic": bytes(magic),
        "offset": bytes(offsets),
        "noise": random.Random(5).randbytes(500),
        "cut": whole[:-10],
    }


@pytest.mark.parametrize("poison", poisons().values(), ids=poisons().keys())
@pytest.mark.parametrize("columns", [False, True], ids=["records", "columns"])
def test_poison_is_an_error_that_can_be_passed_over(poison, columns):
    good = bytes(build_batch([(1, b"k", b"good", ())], base_offset=50))
    answers = {"Fetch": fetched(poison)}
    with LyingBroker(answers) as broker, reader(broker.bootstrap, fetch_max_wait_ms=10) as consumer:
        poll = consumer.poll_arrow if columns else consumer.poll
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0)
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match="t-0"):
                poll(PATIENCE_S)
            assert consumer.position(("t", 0)) == 0
        broker.answers["Fetch"] = fetched(good)
        consumer.seek(("t", 0), 50)
        records = poll(PATIENCE_S)
        assert (records.num_rows if columns else len(records)) == 1


def test_random_noise_never_hangs_nor_escapes():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    whole = bytes(build_batch([(1, b"k", b"v" * 20, [("h", b"x")]) for _ in range(5)], base_offset=0))

    def noise(request, version):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        return fetched(bytes(data))(request, version)

    with LyingBroker({"Fetch": noise}) as broker:
        with reader(broker.bootstrap, fetch_max_wait_ms=10, check_crcs=False) as consumer:
            consumer.assign([("t", 0)])
            errors = 0
            for _ in range(60):
                consumer.seek(("t", 0), 0)
                try:
                    consumer.poll(0.5)
                except KafkaError:
                    errors += 1
        print("errors", errors)


def test_half_of_a_large_answer_is_given_up_in_time():
    """The kernel is asked to wake the client for large pieces only; an answer that stalls must not stall the client."""
    good = fetched(bytes(build_batch([(1, b"k", b"good", ())])))
    stalls = iter([struct.pack(">i", 4 << 20) + bytes(100_000), struct.pack(">i", 4 << 20) + bytes(3 << 20)])

    def answer(request, version):
        return next(stalls, None) or good(request, version)

    with (
        LyingBroker({"Fetch": answer}) as broker,
        reader(broker.bootstrap, fetch_max_wait_ms=10, request_timeout_ms=500, retry_backoff_ms=10) as consumer,
    ):
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0)
        assert [record.value for record in consumer.poll(PATIENCE_S)] == [b"good"]


def test_a_small_answer_after_large_ones_is_heard_at_once():
    """After a large answer the kernel is asked to take in the next one unheard; it may turn out to be small."""
    large = [(1, b"k", bytes(1000), ())] * 600
    small = [(1, b"k", b"small", ())]
    sent = []

    def answer(request, version):
        if not request.topics:  # nothing changed: there is nothing more
            return None
        offset = request.topics[0].partitions[0].fetch_offset
        rows = small if len(sent) % 3 == 2 else large
        sent.append(len(rows))
        return fetched(bytes(build_batch(rows, base_offset=offset)))(request, version)

    with (
        LyingBroker({"Fetch": answer}) as broker,
        reader(broker.bootstrap) as consumer,
    ):
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0)
        rows = 0
        while rows < 12 * 1201:
            table = consumer.poll_arrow(PATIENCE_S / 10)
            assert table.num_rows
            assert table["offset"].to_pylist() == list(range(rows, rows + table.num_rows))
            rows += table.num_rows


def test_prefetch_is_bounded():
    batch = bytes(build_batch([(1, None, b"v" * 1000, ()) for _ in range(100)]))

    def endless(request, version):
        offset = request.topics[0].partitions[0].fetch_offset if request.topics else 0
        data = bytearray(batch)
        data[0:8] = struct.pack(">q", offset)
        return fetched(bytes(data))(request, version)

    with (
        LyingBroker({"Fetch": endless}) as broker,
        reader(broker.bootstrap, queued_max_messages_kbytes=500, max_partition_fetch_bytes=10 << 20) as consumer,
    ):
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0)
        assert consumer.poll(PATIENCE_S)
        fetch_count = -1
        while broker.requests.count("Fetch") != fetch_count:
            fetch_count = broker.requests.count("Fetch")
            time.sleep(0.3)
        assert consumer._inner.subscription_state.buffered <= 500 * 1024 + len(batch)


def test_a_full_buffer_makes_send_wait_and_then_fail():
    answers = {"InitProducerId": some_id, "Produce": lambda *_: None}
    with LyingBroker(answers) as broker:
        producer = Producer(
            bootstrap_servers=broker.bootstrap, buffer_memory=100_000, max_block_ms=300, batch_size=10_000
        )
        try:
            with pytest.raises(BufferFullError, match=r"buffer\.memory=100000"):
                [producer.send("t", b"x" * 1000) for _ in range(1000)]
            assert producer._accumulator.used <= 100_000
        finally:
            producer.close(0)


def test_a_loop_of_sends_lets_others_run():
    """A thousand batches, of which none is answered: the sender and others must get their turns meanwhile."""

    async def story(bootstrap):
        turns = 0

        async def other():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        producer = AsyncProducer(bootstrap_servers=bootstrap, batch_size=1000, linger_ms=60_000)
        await producer.start()
        running = asyncio.create_task(other())
        for _ in range(2000):
            await producer.send("t", bytes(500))
        running.cancel()
        await producer.close(0)
        return turns

    with LyingBroker({"InitProducerId": some_id, "Produce": lambda *_: None}) as broker:
        assert asyncio.run(story(broker.bootstrap)) >= 10
        assert "Produce" in broker.requests


def test_a_full_buffer_opens_again():
    release = threading.Event()

    def slow(request, version):
        return (
            produced(ErrorCode.NONE)(request, version)
            if release.is_set()
            else produced(ErrorCode.NOT_LEADER_OR_FOLLOWER)(request, version)
        )

    with (
        LyingBroker({"InitProducerId": some_id, "Produce": slow}) as broker,
        Producer(bootstrap_servers=broker.bootstrap, buffer_memory=50_000, retry_backoff_ms=20) as producer,
    ):
        threading.Timer(0.5, release.set).start()
        for _ in range(200):
            producer.send("t", b"x" * 1000)
        producer.flush(PATIENCE_S)


def test_what_cannot_be_delivered_fails_in_time():
    answers = {"InitProducerId": some_id, "Produce": produced(ErrorCode.NOT_LEADER_OR_FOLLOWER)}
    with (
        LyingBroker(answers) as broker,
        Producer(
            bootstrap_servers=broker.bootstrap, delivery_timeout_ms=700, request_timeout_ms=500, linger_ms=0
        ) as producer,
    ):
        with pytest.raises(KafkaTimeoutError, match=r"delivery\.timeout\.ms=700"):
            producer.send("t", b"x").result(PATIENCE_S)
        assert producer._accumulator.used == 0


@pytest.mark.parametrize(
    "lie",
    [
        lambda *_: ProduceResponse(responses=[]),
        lambda *_: ProduceResponse(responses=[TopicProduceResponse(name="other", partition_responses=[])]),
        lambda *_: struct.pack(">i", 40) + bytes(40),
        lambda *_: b"HTTP/1.1 200 OK\r\n\r\n",
    ],
    ids=["nothing", "another topic", "another question", "another protocol"],
)
def test_answers_that_lie_about_records_are_not_believed(lie):
    """Nothing counts as delivered, nothing hangs, nothing is kept."""
    with (
        LyingBroker({"InitProducerId": some_id, "Produce": lie}) as broker,
        Producer(
            bootstrap_servers=broker.bootstrap,
            delivery_timeout_ms=600,
            request_timeout_ms=400,
            linger_ms=0,
            reconnect_backoff_ms=10,
            retry_backoff_ms=10,
        ) as producer,
    ):
        with pytest.raises(KafkaTimeoutError):
            producer.send("t", b"x").result(PATIENCE_S)
        assert producer._accumulator.used == 0


def test_a_refusal_for_good_is_told_at_once():
    with (
        LyingBroker({"InitProducerId": some_id, "Produce": produced(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}) as broker,
        Producer(bootstrap_servers=broker.bootstrap) as producer,
        pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"),
    ):
        producer.send("t", b"x").result(PATIENCE_S)


def test_sequences_begin_again_when_the_broker_lost_them():
    epochs = []

    def forgetful(request, version):
        data = request.topic_data[0].partition_data[0].records
        epoch, sequence = struct.unpack_from(">hi", data, 51)
        epochs.append((epoch, sequence))
        return produced(ErrorCode.NONE if epoch else ErrorCode.UNKNOWN_PRODUCER_ID)(request, version)

    with (
        LyingBroker({"InitProducerId": some_id, "Produce": forgetful}) as broker,
        Producer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer,
    ):
        producer.send("t", b"x").result(PATIENCE_S)
        producer.send("t", b"y").result(PATIENCE_S)
    assert epochs[0] == (0, 0)
    assert epochs[-2:] == [(1, 0), (1, 1)]


@pytest.mark.parametrize(("transactional", "tables"), [(False, False), (True, False), (False, True)])
def test_lost_answers_neither_lose_nor_double(tmp_path, transactional, tables):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    with CuttingProxy(seed) as proxy:
        overrides = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
        with KlammProcess(tmp_path, overrides=overrides) as node:
            proxy.target_port = node.port
            name = topic(node.bootstrap, 2)
            settings = {"transactional_id": unique("tx")} if transactional else {}
            with Producer(
                bootstrap_servers=proxy.bootstrap,
                batch_size=200,
                reconnect_backoff_ms=5,
                retry_backoff_ms=5,
                **settings,
            ) as producer:
                if transactional:
                    producer.init_transactions()
                    producer.begin_transaction()
                proxy.chance = 0.1
                if tables:
                    rows = pa.table({"value": [b"%05d" % index for index in range(1500)], "at": [0, 1] * 750})
                    promised = producer.send_arrow(name, rows, partition="at")
                else:
                    promised = [producer.send(name, b"%05d" % index, partition=index % 2) for index in range(1500)]
                producer.flush(PATIENCE_S)
                proxy.chance = 0.0
                if transactional:
                    producer.commit_transaction()
            assert all(delivery.metadata.offset >= 0 for delivery in promised)
            records = read_all(node.bootstrap, name, 1500, isolation_level="read_committed")
            for partition in (0, 1):
                values = [int(record.value) for record in records if record.partition == partition]
                assert values == list(range(partition, 1500, 2))
    assert proxy.cuts


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_restart_is_waited_out(tmp_path, protocol):
    quick = {
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "5000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "200",
        "group.initial.rebalance.delay.ms": "0",
    }
    with KlammProcess(tmp_path, overrides=quick) as node:
        name = topic(node.bootstrap, 2)
        seen: list[int] = []
        stop = threading.Event()
        failures: list[BaseException] = []

        def consume():
            try:
                with reader(node.bootstrap, group_id=unique("g"), group_protocol=protocol) as consumer:
                    consumer.subscribe([name])
                    while not stop.is_set():
                        seen.extend(int(record.value) for record in consumer.poll(0.2))
            except BaseException as error:
                failures.append(error)
                raise

        thread = threading.Thread(target=consume)
        thread.start()
        try:
            with Producer(bootstrap_servers=node.bootstrap) as producer:
                promised = []
                for number in range(600):
                    promised.append(producer.send(name, b"%d" % number))
                    if number in (200, 400):
                        producer.flush(PATIENCE_S)
                        node.kill9()
                        node.start()
                producer.flush(PATIENCE_S)
                assert all(delivery.metadata.offset >= 0 for delivery in promised)
            until(lambda: failures or len(set(seen)) == 600, "everything is read")
            assert not failures
        finally:
            stop.set()
            thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert sorted(int(record.value) for record in read_all(node.bootstrap, name, 600)) == list(range(600))


def test_a_stalled_broker_costs_time_and_no_records(tmp_path):
    import os
    import signal

    with KlammProcess(tmp_path) as node:
        name = topic(node.bootstrap)
        with Producer(bootstrap_servers=node.bootstrap, request_timeout_ms=500, retry_backoff_ms=20) as producer:
            producer.send(name, b"0").result(PATIENCE_S)
            os.kill(node.pid, signal.SIGSTOP)
            promised = [producer.send(name, b"%d" % index) for index in range(1, 50)]
            time.sleep(1.2)
            os.kill(node.pid, signal.SIGCONT)
            assert [delivery.result(PATIENCE_S).offset for delivery in promised] == list(range(1, 50))
        with reader(node.bootstrap) as consumer:
            consumer.assign([(name, 0)])
            assert [int(record.value) for record in read(consumer, 50)] == list(range(50))


def test_a_delivery_callback_may_send(klamm):
    name = topic(klamm.bootstrap)
    done = threading.Event()
    with Producer(bootstrap_servers=klamm.bootstrap) as producer:
        producer.partitions_for(name)

        def again(delivery):
            if delivery.metadata.offset < 5:
                producer.send(name, b"more", on_delivery=again)
            else:
                done.set()

        producer.send(name, b"first", on_delivery=again)
        assert done.wait(PATIENCE_S)


def test_many_threads_share_a_producer(klamm):
    name = topic(klamm.bootstrap, 3)
    with Producer(bootstrap_servers=klamm.bootstrap, batch_size=500, linger_ms=1) as producer:
        promised: list = []

        def work(number):
            promised.extend(producer.send(name, b"%d-%d" % (number, index)) for index in range(1000))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        producer.flush(PATIENCE_S)
        places = {(delivery.metadata.partition, delivery.metadata.offset) for delivery in promised}
    assert len(places) == 4000


def test_an_abort_does_not_wait_for_what_will_never_be_sent(klamm):
    """Batches that were refused for a while when the abort came are dropped, not kept until delivery.timeout.ms."""
    from klamm.client.errors import TransactionAbortableError

    name = topic(klamm.bootstrap)
    with Producer(bootstrap_servers=klamm.bootstrap, transactional_id=unique("tx"), linger_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        promise = producer.send(name, b"waits")
        producer.abort_transaction()
        with pytest.raises(TransactionAbortableError):
            promise.result(PATIENCE_S)
        with producer.transaction():
            producer.send(name, b"kept")
    assert [record.value for record in read_all(klamm.bootstrap, name, 1, isolation_level="read_committed")] == [
        b"kept"
    ]


def test_a_topic_created_after_it_was_subscribed_to_is_found(klamm):
    name = unique("later")
    settings = {"group_id": unique("group"), "allow_auto_create_topics": False, "heartbeat_interval_ms": 200}
    with reader(klamm.bootstrap, **settings) as consumer, Admin(bootstrap_servers=klamm.bootstrap) as admin:
        consumer.subscribe([name])
        until(lambda: consumer.poll(0.2) == [] and consumer.group_metadata().generation_id > 0, "the member has joined")
        admin.create_topic(name, 2)
        until(lambda: consumer.poll(0.2) or len(consumer.assignment()) == 2, "the new topic is assigned")
