"""How clients begin and end: blocks that raise, closing twice, in callbacks, in threads, after a fork, in two polls."""

import asyncio
import re
import subprocess
import sys
import textwrap
import threading

import pytest

import klamm
from harness.client_stories import PATIENCE_S, until
from klamm.client import AsyncConsumer, AsyncProducer, Consumer, loop_thread
from klamm.client.errors import (
    IllegalStateError,
    InvalidTransactionStateError,
    KafkaError,
    KafkaTimeoutError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from klamm.model.errors import ErrorCode

COUNT = 100


def stored(broker, topic):
    return klamm.read_topic(topic, bootstrap=broker.bootstrap, timeout_s=PATIENCE_S).num_rows


def run_program(text, *words):
    """A program of its own, judged by what it leaves behind."""
    # Development mode warns of callbacks that took a tenth of a second: they do on a busy machine.
    quiet = "import logging\nlogging.getLogger('asyncio').setLevel(logging.ERROR)\n"
    program = [sys.executable, "-X", "dev", "-c", quiet + textwrap.dedent(text), *words]
    return subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


# Leaving


def test_a_program_that_leaves_a_block_by_exit_has_delivered(klamm_broker, klamm_topic):
    done = run_program(
        f"""
        import sys
        from klamm.client import Producer
        with Producer(bootstrap_servers=sys.argv[1], linger_ms=100) as producer:
            for _ in range({COUNT}):
                producer.send(sys.argv[2], b"x")
            sys.exit(0)
        """,
        klamm_broker.bootstrap,
        klamm_topic,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert stored(klamm_broker, klamm_topic) == COUNT


def test_a_block_that_raises_has_delivered(klamm_broker, klamm_topic):
    async def story():
        async with AsyncProducer(bootstrap_servers=klamm_broker.bootstrap, linger_ms=1000) as producer:
            for _ in range(COUNT):
                await producer.send(klamm_topic, b"x")
            raise LookupError

    with pytest.raises(LookupError):
        asyncio.run(story())
    assert stored(klamm_broker, klamm_topic) == COUNT


def test_a_block_that_raises_in_a_transaction_aborts_it(klamm_broker, klamm_topic):
    def story():
        with klamm_broker.producer(transactional_id=klamm_topic) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(klamm_topic, b"x").result(PATIENCE_S)
            raise LookupError

    with pytest.raises(LookupError):
        story()
    assert stored(klamm_broker, klamm_topic) == 0


def test_closing_twice_at_once_leaves_other_clients_alone(klamm_broker, klamm_topic):
    with klamm_broker.producer() as producer:
        for _ in range(5):
            consumer = Consumer(bootstrap_servers=klamm_broker.bootstrap, group_id=klamm_topic)
            consumer.subscribe([klamm_topic])
            consumer.poll(0.1)
            threads = [threading.Thread(target=consumer.close) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
            producer.send(klamm_topic, b"x").result(PATIENCE_S)
        with pytest.raises(IllegalStateError, match="closed"):
            consumer.poll(0)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("when", ["on_assign", "on_revoke"])
def test_a_callback_may_close_its_consumer(klamm_broker, klamm_topic, protocol, when):
    consumer = Consumer(bootstrap_servers=klamm_broker.bootstrap, group_id=klamm_topic, group_protocol=protocol)
    called = []

    def close(partitions):
        called.append(partitions)
        consumer.close()

    consumer.subscribe([klamm_topic], **{when: close})
    if when == "on_assign":
        until(lambda: consumer.poll(0.5) or called, "a callback")
    else:
        until(lambda: consumer.poll(0.5) or consumer.assignment(), "an assignment")
        consumer.unsubscribe()
    assert called
    consumer.close()
    with pytest.raises(IllegalStateError, match="closed"):
        consumer.poll(0)
    with klamm_broker.producer() as producer:
        producer.send(klamm_topic, b"x").result(PATIENCE_S)


def test_the_last_callback_to_close_ends_the_thread(klamm_broker, klamm_topic):
    """In a process of its own: no other client keeps the loop."""
    done = run_program(
        """
        import sys, threading
        from klamm.client import Consumer
        consumer = Consumer(bootstrap_servers=sys.argv[1], group_id=sys.argv[2])
        consumer.subscribe([sys.argv[2]], on_assign=lambda _: consumer.close())
        for record in consumer:
            raise AssertionError
        assert "klamm-client" not in {thread.name for thread in threading.enumerate()}
        """,
        klamm_broker.bootstrap,
        klamm_topic,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_closing_ends_a_poll_of_another_thread(klamm_broker, klamm_topic):
    consumer = Consumer(bootstrap_servers=klamm_broker.bootstrap, group_id=klamm_topic)
    consumer.subscribe([klamm_topic])
    until(lambda: consumer.poll(0.1) or consumer.assignment(), "an assignment")
    got = []
    polling = threading.Thread(target=lambda: got.append(consumer.poll(PATIENCE_S)))
    polling.start()
    consumer.close()
    polling.join(PATIENCE_S)
    assert not polling.is_alive()
    assert got in ([[]], [])  # closed before it began to poll, it raised


def test_a_delivery_callback_cannot_close_and_breaks_nothing(klamm_broker, klamm_topic):
    with klamm_broker.producer() as producer:
        notice = threading.Event()
        failures = []

        def close(_):
            try:
                producer.close()
            except RuntimeError as error:
                failures.append(error)
                raise
            finally:
                notice.set()

        producer.send(klamm_topic, b"x", on_delivery=close)
        producer.flush(PATIENCE_S)
        assert notice.wait(PATIENCE_S)
        assert failures
        producer.send(klamm_topic, b"y").result(PATIENCE_S)
    assert stored(klamm_broker, klamm_topic) == 2


def test_after_a_fork_clients_are_the_parents(klamm_broker, klamm_topic):
    """The child is told, whatever the parent's threads held when it forked; the parent goes on."""
    done = run_program(
        """
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads, on purpose
        from klamm.client import Consumer, Producer
        from klamm.client.errors import IllegalStateError
        with Producer(bootstrap_servers=sys.argv[1]) as producer, Consumer(bootstrap_servers=sys.argv[1]) as consumer:
            producer.send(sys.argv[2], b"before").result(30)
            producer._lock.acquire()
            child = os.fork()
            if not child:
                told = 0
                for use in (
                    lambda: producer.send(sys.argv[2], b"lost"), lambda: producer.flush(2), lambda: consumer.poll(1)
                ):
                    try:
                        use()
                    except IllegalStateError as error:
                        told += "fork" in str(error)
                producer.close()
                with Producer(bootstrap_servers=sys.argv[1]) as own:
                    own.send(sys.argv[2], b"child").result(30)
                os._exit(0 if told == 3 else 1)
            producer._lock.release()
            assert os.waitpid(child, 0)[1] == 0
            producer.send(sys.argv[2], b"after").result(30)
        """,
        klamm_broker.bootstrap,
        klamm_topic,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert stored(klamm_broker, klamm_topic) == 3


def test_a_thread_that_ended_cannot_be_held():
    thread = loop_thread.LoopThread()
    assert not loop_thread.retain(thread)
    thread.stop()


# Two polls


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_two_polls_may_join_together(klamm_broker, klamm_topic, protocol):
    with klamm_broker.producer() as producer:
        for index in range(COUNT):
            producer.send(klamm_topic, str(index).encode())

    async def story():
        values = []
        settings = {"group_id": klamm_topic, "group_protocol": protocol, "auto_offset_reset": "earliest"}
        async with AsyncConsumer(bootstrap_servers=klamm_broker.bootstrap, **settings) as consumer:
            consumer.subscribe([klamm_topic])
            async with asyncio.timeout(PATIENCE_S):
                while len(values) < COUNT:
                    for records in await asyncio.gather(consumer.poll(1), consumer.poll(1), consumer.poll(1)):
                        values += [int(record.value) for record in records]
        return values

    assert sorted(asyncio.run(story())) == list(range(COUNT))


# What is refused at once


def test_a_record_that_cannot_be_encoded_is_refused_and_the_rest_goes(klamm_broker, klamm_topic):
    with klamm_broker.producer(linger_ms=200) as producer:
        good = [producer.send(klamm_topic, b"x") for _ in range(5)]
        for timestamp, kind in ((1 << 63, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
            with pytest.raises(kind, match="timestamp"):
                producer.send(klamm_topic, b"x", timestamp=timestamp)
        with pytest.raises(ValueError, match="header"):
            producer.send(klamm_topic, b"x", headers=[("\ud800", b"")])
        with pytest.raises(TypeError, match="encode it"):
            producer.send(klamm_topic, b"x", headers=[("h", "text")])
        good.append(producer.send(klamm_topic, b"x", headers=[("größe", b"1")], timestamp=0))
        for delivery in good:
            delivery.result(PATIENCE_S)
    assert stored(klamm_broker, klamm_topic) == len(good)


def test_what_can_never_be_sent_is_told_at_once(klamm_broker, klamm_topic):
    with klamm_broker.producer(buffer_memory=10_000, batch_size=1000, max_block_ms=600_000) as producer:
        with pytest.raises(RecordTooLargeError, match=r"buffer\.memory=10000"):
            producer.send(klamm_topic, bytes(20_000))
        for name in ("", "a b", "."):
            with pytest.raises(KafkaError) as refused:
                producer.send(name, b"x")
            assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
        for number in (7, -1):
            with pytest.raises(UnknownTopicOrPartitionError, match="1 partitions"):
                producer.send(klamm_topic, b"x", partition=number)


def test_records_for_a_topic_that_went_say_so(klamm_broker, klamm_admin, klamm_topic):
    with klamm_broker.producer(
        delivery_timeout_ms=1500, request_timeout_ms=1000, linger_ms=0, allow_auto_create_topics=False
    ) as producer:
        producer.send(klamm_topic, b"x").result(PATIENCE_S)
        klamm_admin.delete_topics([klamm_topic])
        with pytest.raises(KafkaTimeoutError, match="UNKNOWN_TOPIC"):
            producer.send(klamm_topic, b"y").result(PATIENCE_S)


def test_states_are_told_in_words(klamm_broker, klamm_topic):
    async def not_started():
        await AsyncProducer(bootstrap_servers=klamm_broker.bootstrap).flush()

    with pytest.raises(IllegalStateError, match="not started"):
        asyncio.run(not_started())
    with klamm_broker.producer(transactional_id=klamm_topic) as producer:
        producer.init_transactions()
        with pytest.raises(InvalidTransactionStateError, match="it has to be not initialized"):
            producer.init_transactions()


def test_patterns_match_whole_names_and_are_not_mistaken_for_names(klamm_broker, klamm_name):
    prefix = klamm_name("pattern")
    for suffix in ("orders", "orders-dlq"):
        with klamm_broker.admin() as admin:
            admin.create_topic(f"{prefix}-{suffix}")
    with Consumer(bootstrap_servers=klamm_broker.bootstrap, group_id=prefix) as consumer:
        with pytest.raises(ValueError, match=r"re\.compile"):
            consumer.subscribe(f"^{prefix}.*")
        consumer.subscribe(re.compile(f"{prefix}-orders"))
        until(lambda: consumer.poll(0.2) or consumer.assignment(), "an assignment")
        assert consumer.subscription() == {f"{prefix}-orders"}


def test_offsets_that_are_none_are_refused(klamm_broker, klamm_topic):
    with Consumer(bootstrap_servers=klamm_broker.bootstrap, group_id=klamm_topic) as consumer:
        consumer.assign([(klamm_topic, 0)])
        with pytest.raises(TypeError, match="whole number"):
            consumer.seek((klamm_topic, 0), 1.5)
        with pytest.raises(TypeError, match=f"{klamm_topic}-0"):
            consumer.commit({(klamm_topic, 0): "5"})
        with pytest.raises(ValueError, match="begin at 0"):
            consumer.commit({(klamm_topic, 0): -2})
        consumer.commit({(klamm_topic, 0): (5, "note")})
        (committed,) = consumer.committed([(klamm_topic, 0)]).values()
        assert (committed.offset, committed.metadata) == (5, "note")
