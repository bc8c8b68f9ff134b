"""Arguments of the wrong shape: every public method says what it wants instead, by the name of the argument.

The older tests gave lists where single things belong and the reverse. What is wrong in another way got as far as the
first line that could not use it, and was told in that line's words.
"""

import inspect
import re

import pyarrow as pa
import pytest

import klamm
import klamm.testing
from klamm.client import Admin, AsyncConsumer, Consumer, OffsetAndMetadata, Producer, TopicPartition
from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.columns import read_topic

INSIDE = re.compile(
    r"__new__|has no attribute|has no len|is not iterable|not supported between|unhashable|struct\.|argument after"
)
"""Words of the interpreter, not of the client."""

RIGHT = {
    "broker_id": 1,
    "before": {},
    "changes": {},
    "coordinator_epoch": 0,
    "counts": {},
    "directory_id": bytes(16),
    "hmac": b"",
    "filters": [],
    "group": "g",
    "group_id": "g",
    "group_ids": [],
    "levels": {},
    "listeners": [],
    "moves": {},
    "name": "t",
    "names": [],
    "offset": 0,
    "offsets": {},
    "partition": ("t", 0),
    "partitions": [],
    "producer_epoch": 0,
    "producer_id": 1,
    "request": None,
    "resources": [],
    "rules": [],
    "specs": {},
    "table": pa.table({"value": ["a"]}),
    "times": {},
    "topic": "t",
    "topics": [],
    "transactional_ids": [],
    "voter_id": 1,
}
ANYTHING = {("request", "request"), ("send_arrow", "table")}
"""Arguments that have no shape of their own."""


class Thing:
    """What no method can use."""


WRONG = [Thing(), [Thing()], {Thing(): Thing()}]


def arguments(cls) -> list[tuple[str, str]]:
    return [
        (name, argument.name)
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
        for argument in list(inspect.signature(method).parameters.values())[1:]
        if (name, argument.name) not in ANYTHING
    ]


def call(client, name, argument, wrong):
    method = getattr(client, name)
    positional, keywords = [], {}
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [wrong]
        elif parameter.name == argument:
            keywords[parameter.name] = wrong
        elif parameter.default is parameter.empty:
            keywords[parameter.name] = RIGHT[parameter.name]
    return method(*positional, **keywords)


def check(client, name, argument):
    for wrong in WRONG:
        with pytest.raises((TypeError, ValueError)) as raised:
            call(client, name, argument, wrong)
        words = str(raised.value)
        assert argument in words or argument.rstrip("s") in words or name in words, f"{name}({argument}): {words}"
        assert not INSIDE.search(words), f"{name}({argument}={wrong!r}): {words}"


@pytest.fixture(scope="module")
def broker():
    with klamm.testing.broker() as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker):
    with broker.admin() as client:
        yield client


@pytest.fixture(scope="module")
def consumer(broker):
    with broker.consumer() as client:
        yield client


@pytest.fixture(scope="module")
def producer(broker):
    with broker.producer() as client:
        client.send("t", b"the topic is known").result(30)
        yield client


@pytest.fixture(scope="module")
def transactional(broker):
    with broker.producer(transactional_id="shapes") as client:
        client.init_transactions()
        client.begin_transaction()
        yield client


@pytest.mark.parametrize(("name", "argument"), arguments(AsyncAdmin))
def test_an_admin_says_what_it_wants(admin, name, argument):
    check(admin, name, argument)


@pytest.mark.parametrize(("name", "argument"), arguments(Consumer))
def test_a_consumer_says_what_it_wants(consumer, name, argument):
    check(consumer, name, argument)


@pytest.mark.parametrize(("name", "argument"), arguments(Producer))
def test_a_producer_says_what_it_wants(producer, transactional, name, argument):
    check(transactional if "offsets" in name else producer, name, argument)


@pytest.mark.parametrize("argument", ["topic", "bootstrap", "start", "end", "isolation", "partitions", "timeout_s"])
def test_read_topic_says_what_it_wants(broker, argument):
    for wrong in WRONG:
        with pytest.raises((TypeError, ValueError), match=argument):
            read_topic(**({"topic": "t", "bootstrap": broker.bootstrap, "timeout_s": 10} | {argument: wrong}))


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
def test_settings_of_the_wrong_shape_are_named(kind):
    with pytest.raises(TypeError, match="settings are a mapping"):
        kind("127.0.0.1:9092")
    with pytest.raises(ValueError, match=r"client\.id="):
        kind(bootstrap_servers="127.0.0.1:1", client_id=Thing())


def test_an_unknown_topic_of_the_wrong_type_is_named_too(producer):
    for topic in (7, None, b"t", ["t"]):
        with pytest.raises(TypeError, match="topic of send is a text, not"):
            producer.send(topic, b"value")
    with pytest.raises(TypeError, match="partition of send is a whole number, not '0'"):
        producer.send("t", b"value", partition="0")
    for headers in ("ab", 7, [b"ab"], [("a", b"1", b"2")]):
        with pytest.raises(TypeError, match="headers are pairs"):
            producer.send("t", b"value", headers=headers)


def test_methods_are_what_they_were_to_those_who_look_at_them():
    """Mocks made after a class, and frameworks, ask whether a method is a coroutine, and for its arguments."""
    assert inspect.iscoroutinefunction(AsyncConsumer.poll)
    assert not inspect.iscoroutinefunction(AsyncConsumer.seek)
    assert list(inspect.signature(AsyncConsumer.seek).parameters) == ["self", "partition", "offset", "leader_epoch"]
    with pytest.raises(TypeError, match=r"seek\(\) missing 2 required positional arguments"):
        AsyncConsumer(bootstrap_servers="127.0.0.1:1").seek()


def test_a_record_commits_the_offset_behind_it(broker):
    topic = broker.topic()
    place = TopicPartition(topic, 0)
    with broker.producer() as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number)
    with broker.consumer(topic, enable_auto_commit=False) as consumer:
        records = []
        while len(records) < 5:
            records += consumer.poll(30)
        consumer.commit(records[2])
        assert consumer.committed([place])[place].offset == 3
        consumer.commit({place: 1})
        consumer.commit({(topic, 0): OffsetAndMetadata(2, "note")})
        assert consumer.committed([place])[place] == OffsetAndMetadata(2, "note")
        with pytest.raises(
            TypeError, match=r'offsets are a record or a mapping, e\.g\. \{\("orders", 0\): 42\}, not \['
        ):
            consumer.commit([place])


def test_what_is_right_in_another_type_is_taken(broker, producer):
    import numpy as np

    topic = broker.topic(partitions=2)
    assert producer.send(topic, b"value", partition=np.int64(1)).result(30).partition == 1
    table = pa.table({"value": ["a"]})
    producer.send_arrow(topic, table, partition=np.int32(0))
    producer.flush(np.float64(30))
    assert klamm.read_topic(topic, bootstrap=broker.bootstrap).num_rows == 2
