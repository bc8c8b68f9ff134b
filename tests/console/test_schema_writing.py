"""Records that the produce form writes with schemas of a registry, and decoded ones that are edited and sent again."""

import json
import re

import pytest

from klamm.console.clusters import ConsoleCluster
from klamm.console.record_encoder import NEWEST, PartSchema, RecordEncoder
from klamm.console.service import ConsoleConfig
from klamm.registry.serializers import AvroDeserializer, AvroSerializer, ProtobufSerializer
from klamm.registry.serializers.any_schema import RegistryDeserializer
from klamm.testing import unique
from registry.conftest import running_registry
from registry.generated_messages import make_classes
from registry.in_process import InProcessRegistry

from .served import ServedConsole
from .test_pages import make_topic

FIRST = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
SECOND = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "card", "type": ["null", "string"], "default": None}],
    }
)
OBJECT = '{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'
FILE = 'syntax = "proto3"; package shop; message Empty {} message Order { string drink = 1; }'


@pytest.fixture
def registry():
    client = InProcessRegistry()
    yield client
    client.close()


def encoder(registry, part="value", name=NEWEST, message=""):
    return RecordEncoder(registry, "orders", PartSchema(part, name, message))


def decode(registry, data, part="value"):
    return RegistryDeserializer(registry, as_json=True).deserialize("orders", data, part)


def test_json_is_written_with_the_newest_or_a_chosen_version(registry):
    first, second = registry.register("orders-value", FIRST), registry.register("orders-value", SECOND)
    for name, schema in ((NEWEST, second), ("1", first), ("2", second), (f"id:{first.id}", first)):
        data = encoder(registry, name=name).encode_text('{"id": 3}' if schema is first else '{"id": 3, "card": null}')
        assert data[:5] == b"\0" + schema.id.to_bytes(4, "big")
        assert decode(registry, data)["id"] == 3


def test_each_kind_of_schema_is_written(registry):
    registry.register("orders-value", OBJECT, "JSON")
    assert decode(registry, encoder(registry).encode_text('{"id": 3}')) == {"id": 3}
    registry.register("orders-key", FILE, "PROTOBUF")
    data = encoder(registry, "key", message="shop.Order").encode_text('{"drink": "tea"}')
    assert decode(registry, data, "key") == {"drink": "tea"}


@pytest.mark.parametrize(
    ("kind", "schema", "text", "complaint"),
    [
        ("AVRO", FIRST, '{"id": "three"}', "the value does not fit Avro schema"),
        ("AVRO", FIRST, '{"id": 99999999999999999999}', "the value does not fit"),
        ("AVRO", FIRST, "{}", "the value does not fit Avro schema"),
        ("JSON", OBJECT, "{}", "the value does not fit"),
        ("PROTOBUF", FILE, '{"absent": 1}', "the value does not fit Protobuf schema"),
        ("AVRO", FIRST, "{", "the value is no JSON"),
        ("AVRO", FIRST, "[" * 100_000, "the value is no JSON"),
    ],
)
def test_json_that_does_not_fit_is_refused_with_the_reason(registry, kind, schema, text, complaint):
    registry.register("orders-value", schema, kind)
    with pytest.raises(ValueError, match=complaint):
        encoder(registry).encode_text(text)


@pytest.mark.parametrize(
    ("schema", "text", "key"),
    [('"string"', "a-1", "a-1"), ('"string"', "17", "17"), ('"string"', '"a"', '"a"'), ('"long"', "17", 17)],
)
def test_a_key_is_written_as_it_is_shown(registry, schema, text, key):
    registry.register("orders-key", schema)
    assert decode(registry, encoder(registry, "key").encode_text(text), "key") == key


def test_a_key_that_is_neither_json_nor_fits_as_text_is_refused(registry):
    registry.register("orders-key", '"long"')
    for text, complaint in (("a-1", "the key is no JSON"), ('"a"', "does not fit")):
        with pytest.raises(ValueError, match=complaint):
            encoder(registry, "key").encode_text(text)


@pytest.mark.parametrize("name", [NEWEST, "1", "id:99", "first", "id:", "99999999999999"])
def test_a_schema_that_there_is_not_is_refused(registry, name):
    with pytest.raises(ValueError, match="the schema of the value cannot be used"):
        encoder(registry, name=name)


# The pages


@pytest.fixture(scope="module")
def running(broker):
    with running_registry(broker.bootstrap, unique("_schemas"), unique("schema-registry")) as running:
        yield running


@pytest.fixture(scope="module")
def writing(broker, running):
    cluster = ConsoleCluster("test", broker.bootstrap, registry_url=running.url)
    with ServedConsole(ConsoleConfig((cluster,), interval_s=600)) as console:
        console.collect()
        yield console


@pytest.fixture
def person(writing):
    visit = writing.visitor()
    yield visit
    visit.client.close()


def produce(visit, topic, status=200, **fields):
    path = f"/c/test/topics/{topic}/produce"
    return visit.post(path, path, status, **fields)


def read_all(broker, topic, count):
    records = []
    with broker.consumer() as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        while len(records) < count:
            records += consumer.poll(10)
    return records


def selected(page, name):
    options = re.search(rf'<select name="{name}">(.*?)</select>', page, re.DOTALL)[1]
    return re.search(r'<option value="([^"]*)" selected', options)[1]


def test_the_form_proposes_the_newest_schema_of_the_topic(broker, writing, running, person):
    topic = make_topic(broker, writing, partitions=1)
    page = person.get(f"/c/test/topics/{topic}/produce")
    assert selected(page, "value_schema") == ""
    running.register(f"{topic}-value", SECOND)
    page = person.get(f"/c/test/topics/{topic}/produce")
    assert selected(page, "value_schema") == NEWEST
    assert selected(page, "key_schema") == ""
    assert f"{topic}-value v1" in page


def test_the_form_writes_a_record_with_schemas(broker, writing, running, person):
    topic = make_topic(broker, writing, partitions=1)
    running.register(f"{topic}-value", SECOND)
    running.register(f"{topic}-key", '"string"')
    fields = {"key": "k1", "value": '{"id": 7, "card": "4711"}', "key_schema": NEWEST, "value_schema": "1"}
    assert "&#34;4711&#34;" in produce(person, topic, **fields)
    (record,) = read_all(broker, topic, 1)
    deserializer = AvroDeserializer(running.url)
    assert deserializer.deserialize(topic, record.value) == {"id": 7, "card": "4711"}
    assert deserializer.deserialize(topic, record.key, "key") == "k1"
    assert "value schema" in person.get("/c/test/audit")


def test_a_value_that_does_not_fit_comes_back_with_the_reason(broker, writing, running, person):
    topic = make_topic(broker, writing, partitions=1)
    running.register(f"{topic}-value", SECOND)
    page = produce(person, topic, 400, value='{"id": "seven"}', value_schema="1")
    assert "does not fit Avro schema" in page
    assert selected(page, "value_schema") == "1"
    assert "seven" in re.search(r"<textarea name=\"value\".*?</textarea>", page, re.DOTALL)[0]


def test_an_export_of_decoded_records_is_written_with_schemas(broker, writing, running, person):
    topic, copy = make_topic(broker, writing, partitions=1), make_topic(broker, writing, partitions=1)
    for name in (topic, copy):
        running.register(f"{name}-value", SECOND)
        running.register(f"{name}-key", '"string"')
    lines = '{"key": "a", "value": {"id": 1, "card": null}}\n{"key": "b", "value": {"id": 2, "card": "x"}}\n'
    choices = {"mode": "lines", "key_schema": NEWEST, "value_schema": NEWEST}
    produce(person, topic, value=lines, **choices)
    exported = person.get(f"/c/test/topics/{topic}/messages/export?start=earliest")
    produce(person, copy, value=exported, **choices)
    originals, copies = read_all(broker, topic, 2), read_all(broker, copy, 2)
    assert [record.value[5:] for record in copies] == [record.value[5:] for record in originals]
    assert [record.key[5:] for record in copies] == [record.key[5:] for record in originals]
    page = produce(person, topic, 400, value=lines + '{"value": {"id": "x"}}', **choices)
    assert "line 3: the value does not fit Avro schema" in page


def test_a_line_without_key_and_value_is_the_value(broker, writing, running, person):
    topic = make_topic(broker, writing, partitions=1)
    running.register(f"{topic}-value", SECOND)
    produce(person, topic, mode="lines", value='{"id": 1, "card": null}', value_schema=NEWEST)
    (record,) = read_all(broker, topic, 1)
    assert AvroDeserializer(running.url).deserialize(topic, record.value) == {"id": 1, "card": None}


def form_of(page):
    fields = {name: selected(page, name) for name in ("key_schema", "value_schema")}
    for name in ("key", "key_message", "value_message"):
        match = re.search(rf'<input name="{name}" value="([^"]*)"', page)
        fields[name] = match[1].replace("&#34;", '"') if match else ""
    for name in ("value", "headers"):
        text = re.search(rf'<textarea name="{name}"[^>]*>(.*?)</textarea>', page, re.DOTALL)[1]
        fields[name] = text.replace("&#34;", '"')
    return fields


def test_a_decoded_record_is_edited_and_sent_again_with_its_schema(broker, writing, running, person):
    topic = make_topic(broker, writing, partitions=1)
    running.register(f"{topic}-value", SECOND)
    produce(person, topic, key="k", value='{"id": 7, "card": "4711"}', value_schema=NEWEST)
    assert "Edit and send again" in person.get(f"/c/test/topics/{topic}/messages/0/0")
    fields = form_of(person.get(f"/c/test/topics/{topic}/produce?from=0/0"))
    assert json.loads(fields["value"]) == {"id": 7, "card": "4711"}
    produce(person, topic, **{**fields, "value": fields["value"].replace("4711", "4712")})
    first, second = read_all(broker, topic, 2)
    assert second.value == first.value.replace(b"4711", b"4712")
    assert second.key == first.key == b"k"


def test_a_protobuf_record_is_sent_again_as_the_same_message(broker, writing, running, person):
    topic = make_topic(broker, writing, partitions=1)
    _, order_class, _, _ = make_classes()
    data = ProtobufSerializer(running.url, order_class).serialize(topic, order_class(drink="tea"))
    with broker.producer() as producer:
        producer.send(topic, data).result()
    fields = form_of(person.get(f"/c/test/topics/{topic}/produce?from=0/0"))
    assert fields["value_message"] == "shop.Order"
    produce(person, topic, **fields)
    assert [record.value for record in read_all(broker, topic, 2)] == [data, data]


def test_a_record_that_names_its_schema_in_a_header_is_not_edited(broker, writing, running, person):
    """The form writes the prefix with the id, and a header has the GUID."""
    topic = make_topic(broker, writing, partitions=1)
    headers = []
    serializer = AvroSerializer(running.url, SECOND, schema_id_serializer="header")
    data = serializer.serialize(topic, {"id": 7, "card": None}, headers=headers)
    with broker.producer() as producer:
        producer.send(topic, data, headers=headers).result()
    page = person.get(f"/c/test/topics/{topic}/messages/0/0")
    assert "&#34;id&#34;: 7" in page
    assert "Edit and send again" not in page
