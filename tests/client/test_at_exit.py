"""Programs that end without flush() or close(): their records arrive, or stderr says how many did not; consumers leave.

The older tests all closed their clients, by `with` or by a fixture: what a program does that does neither was not
looked at. These are programs of their own, since only an interpreter that really ends shows what happens then.
"""

import subprocess
import sys
import time
import uuid

import pytest

import klamm.testing

BLOCKING = """
import sys
from klamm.client import Producer

def main(bootstrap, topic):
    producer = Producer(bootstrap_servers=bootstrap, linger_ms=60_000)
    for number in range(35):
        producer.send(topic, b"%d" % number)

main(*sys.argv[1:])
"""
ENDINGS = {
    "the end of main": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise RuntimeError('boom')", 1),
    "a thread that goes on": (
        """
import threading, time
def late():
    threading.main_thread().join()
    main(*sys.argv[1:])
threading.Thread(target=late).start()
""",
        0,
    ),
}
LOST = """
import os, signal, sys
from klamm.client import Producer

producer = Producer(
    bootstrap_servers=sys.argv[1], linger_ms=0, request_timeout_ms=1000, delivery_timeout_ms=2500
)
producer.send(sys.argv[2], b"first").result()
print("ready", flush=True)
sys.stdin.readline()
for number in range(35):
    producer.send(sys.argv[2], b"%d" % number)
"""
ASYNC = """
import asyncio, sys
from klamm.client import AsyncProducer

async def main():
    producer = AsyncProducer(bootstrap_servers=sys.argv[1], linger_ms=60_000)
    await producer.start()
    for number in range(35):
        await producer.send(sys.argv[2], b"%d" % number)
    if len(sys.argv) > 3:
        await producer.close()

asyncio.run(main())
"""
TRANSACTION = """
import sys
from klamm.client import Producer

producer = Producer(bootstrap_servers=sys.argv[1], transactional_id="till-1")
producer.init_transactions()
producer.begin_transaction()
producer.send(sys.argv[2], b"half")
"""

MEMBER = """
import sys
from klamm.client import Consumer

def main(bootstrap, topic, group, protocol):
    consumer = Consumer(
        bootstrap_servers=bootstrap, group_id=group, group_protocol=protocol, auto_offset_reset="earliest",
        auto_commit_interval_ms=3_600_000,
    )
    consumer.subscribe([topic], on_revoke=lambda gone: print("revoked", flush=True))
    while not consumer.poll(10):
        pass
    print("member", flush=True)
    sys.stdin.readline()

main(*sys.argv[1:])
"""


@pytest.fixture(scope="module")
def broker():
    with klamm.testing.broker(child=True) as running:
        yield running


def run(program, *arguments):
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=90, check=False
    )


def values(broker, topic, **settings):
    table = klamm.read_topic(topic, bootstrap=broker.bootstrap, **settings)
    return [value.decode() for value in table["value"].to_pylist()]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_blocking_producer_delivers_at_exit(broker, ending):
    topic = broker.topic()
    words, code = ENDINGS[ending]
    ended = run(BLOCKING + words, broker.bootstrap, topic)
    assert ended.returncode == code, ended.stderr
    assert "klamm:" not in ended.stderr
    expected = [str(number) for number in range(35)]
    assert values(broker, topic) == expected * (2 if "thread" in ending else 1)


def test_connections_can_be_opened_at_exit(broker):
    """The first record of a topic goes to a leader that has no connection yet; names are looked up in a thread."""
    topic = broker.topic()
    ended = run(BLOCKING, f"localhost:{broker.port}", topic)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(values(broker, topic)) == 35


def test_what_cannot_be_delivered_is_said_with_its_number():
    with klamm.testing.broker(child=True) as own:
        topic = own.topic()
        with subprocess.Popen(
            [sys.executable, "-c", LOST, own.bootstrap, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as program:
            assert program.stdout.readline() == "ready\n"
            own.kill()
            began = time.monotonic()
            _, errors = program.communicate("\n", timeout=60)
        assert "klamm: 35 records were not delivered when the program ended, of 35 that waited" in errors
        assert "klamm: waiting up to 2.5 s (delivery.timeout.ms) for 35 records" in errors
        assert time.monotonic() - began < 30
        assert program.returncode == 0


def test_an_asyncio_producer_says_how_many_it_did_not_send(broker):
    topic = broker.topic()
    ended = run(ASYNC, broker.bootstrap, topic)
    assert "klamm: 35 records were not sent: an AsyncProducer was not closed" in ended.stderr
    assert values(broker, topic) == []
    closed = run(ASYNC, broker.bootstrap, topic, "close")
    assert "klamm:" not in closed.stderr
    assert len(values(broker, topic)) == 35


def test_an_open_transaction_is_aborted_and_said(broker):
    topic = broker.topic()
    ended = run(TRANSACTION, broker.bootstrap, topic)
    assert "klamm: the transaction of till-1 was open when the program ended, and was aborted" in ended.stderr
    assert values(broker, topic) == []


def start_member(broker, protocol, ending=""):
    topic, group = broker.topic(), f"group-{uuid.uuid4().hex[:8]}"
    with broker.producer() as producer:
        producer.send(topic, b"value").result(30)
    program = subprocess.Popen(
        [sys.executable, "-c", MEMBER + ending, broker.bootstrap, topic, group, protocol],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return program, group


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("ending", ["", "raise RuntimeError('boom')"], ids=["end", "exception"])
def test_a_consumer_that_was_not_closed_leaves_its_group_at_exit(broker, protocol, ending):
    """Sessions are 45 s: before, a group waited for so long for the partitions of a program that had ended."""
    program, group = start_member(broker, protocol, ending)
    with program, broker.admin() as admin:
        assert program.stdout.readline() == "member\n"
        assert len(admin.describe_groups([group])[group].members) == 1
        output, errors = program.communicate("\n", timeout=60)
        assert not admin.describe_groups([group])[group].members
        assert output == "", "callbacks are not called when a program ends"
        assert "klamm:" not in errors
        assert ("boom" in errors) == bool(ending)
        assert not admin.list_group_offsets(group), "what was done with the last records is not known"


def test_a_program_whose_broker_is_gone_does_not_wait_for_it():
    with klamm.testing.broker(child=True) as own:
        program, _ = start_member(own, "classic")
        with program:
            assert program.stdout.readline() == "member\n"
            own.kill()
            program.communicate("\n", timeout=30)
            assert program.returncode == 0
