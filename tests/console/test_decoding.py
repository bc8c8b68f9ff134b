"""Records with schemas of a registry: decoded, searched, masked; and what is not decodable."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client.types import Record
from klamm.console.clusters import ConsoleCluster
from klamm.console.core.avro_limits import RECURSIVE_BYTES_MAX, find_limits
from klamm.console.core.record_views import SchemaNote, ShownRecord, SubjectVersion, view_record
from klamm.console.read_request import mask_record
from klamm.console.record_decoder import DECODED_BYTES_MAX, LOOKUPS_MAX, LookupBudget, RecordDecoder
from klamm.console.service import ConsoleConfig
from klamm.console.settings import parse_settings
from klamm.registry.client import RegistryUnreachable
from klamm.registry.framing import prefix
from klamm.registry.serializers import AvroSerializer, JsonSchemaSerializer, ProtobufSerializer
from klamm.testing import unique
from registry.conftest import running_registry
from registry.generated_messages import make_classes
from registry.in_process import InProcessRegistry

from .served import ServedConsole

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "card", "type": ["null", "string"], "default": None}],
    }
)
TITLED = '{"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'
LIST = '{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}'


@pytest.fixture
def registry():
    client = InProcessRegistry()
    yield client
    client.close()


def record(value=None, key=None, headers=(), topic="orders"):
    return Record(topic, 0, 7, 1000, key, value, headers)


def decode(registry, **parts):
    return RecordDecoder(registry).decode(record(**parts), LookupBudget())


def test_avro_is_decoded_with_its_schema(registry):
    data = AvroSerializer(registry, ORDER).serialize("orders", {"id": 3, "card": "4711"})
    shown = decode(registry, value=data)
    assert json.loads(shown.value) == {"id": 3, "card": "4711"}
    assert shown.value_schema == SchemaNote("1", len(data), 1, "AVRO")


def test_json_schema_is_decoded(registry):
    shown = decode(registry, value=JsonSchemaSerializer(registry, TITLED).serialize("orders", {"id": 3}))
    assert json.loads(shown.value) == {"id": 3}
    assert shown.value_schema.kind == "JSON"


def test_protobuf_is_decoded_with_the_names_of_its_fields(registry):
    _, order_class, _, _ = make_classes()
    data = ProtobufSerializer(registry, order_class).serialize("orders", order_class(drink="tea"))
    shown = decode(registry, value=data)
    assert json.loads(shown.value)["drink"] == "tea"
    assert shown.value_schema.kind == "PROTOBUF"


def test_a_key_that_is_text_stays_bare(registry):
    data = AvroSerializer(registry, '"string"').serialize("orders", "a-1", part="key")
    assert decode(registry, key=data).key == b"a-1"


def test_a_header_names_the_schema(registry):
    headers = []
    serialize = AvroSerializer(registry, ORDER, schema_id_serializer="header")
    data = serialize.serialize("orders", {"id": 3, "card": None}, headers=headers)
    shown = decode(registry, value=data, headers=tuple(headers))
    assert json.loads(shown.value) == {"id": 3, "card": None}
    assert re.fullmatch("[0-9a-f-]{36}", shown.value_schema.name)


@pytest.mark.parametrize("data", [None, b"", b"text", b'{"id": 1}', b"\x00\x00\x01", b"\x01\x02\x03\x04\x05\x06\x07"])
def test_bytes_that_name_no_schema_cost_no_request(registry, data):
    shown = decode(registry, value=data)
    assert (shown.value, shown.value_schema) == (data, None)
    assert registry.requests == {}


def test_a_schema_that_the_registry_lacks_leaves_the_bytes(registry):
    shown = decode(registry, value=prefix(99) + b"\x02")
    assert shown.value == prefix(99) + b"\x02"
    assert "no schema 99" in shown.value_schema.error


def test_damaged_bytes_leave_the_bytes(registry):
    data = AvroSerializer(registry, ORDER).serialize("orders", {"id": 3, "card": "4711"})
    for damaged in (data[:-2], data + b"\x00", prefix(1) + b"\xff" * 40):
        shown = decode(registry, value=damaged)
        assert shown.value == damaged
        assert shown.value_schema.error


@pytest.fixture(scope="module")
def two_schemas():
    client = InProcessRegistry()
    client.register("orders-value", ORDER)
    client.register("list-value", LIST)
    yield RecordDecoder(client)
    client.close()


@given(payload=st.binary(max_size=200))
def test_no_bytes_fail_a_page(two_schemas, payload):
    for number in (1, 2, 3):
        two_schemas.decode(record(prefix(number) + payload, payload), LookupBudget())


def test_a_reading_requests_a_limited_number_of_schemas(registry):
    decoder, budget = RecordDecoder(registry), LookupBudget()
    shown = decoder.decode_all([record(prefix(1000 + number) + b"\x02") for number in range(LOOKUPS_MAX + 20)], budget)
    assert sum(registry.requests.values()) == LOOKUPS_MAX
    assert f"more than {LOOKUPS_MAX} schemas" in shown[-1].value_schema.error


def test_a_registry_that_is_down_is_left_alone_for_a_while(registry, monkeypatch):
    calls, now = [], [0.0]

    def refuse(*_):
        calls.append(now[0])
        raise RegistryUnreachable("the registry does not answer")

    data = AvroSerializer(registry, ORDER).serialize("orders", {"id": 3, "card": None})
    decoder = RecordDecoder(registry, lambda: now[0])
    monkeypatch.setattr(registry, "cached_schema", lambda *_: None)
    monkeypatch.setattr(registry, "schema", refuse)
    shown = decoder.decode_all([record(data)] * 5, LookupBudget())
    assert [note.value_schema.error for note in shown] == ["the registry does not answer"] * 5
    assert calls == [0.0]
    now[0] = 60.0
    decoder.decode(record(data), LookupBudget())
    assert calls == [0.0, 60.0]


def test_large_values_are_not_decoded(registry):
    shown = decode(registry, value=prefix(1) + bytes(DECODED_BYTES_MAX))
    assert "larger than" in shown.value_schema.error
    assert registry.requests == {}


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "null"},
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "Empty", "fields": []},
        {"type": "record", "name": "Nulls", "fields": [{"name": "a", "type": "null"}]},
    ],
)
def test_arrays_of_items_without_bytes_are_refused(registry, items):
    text = json.dumps({"type": "array", "items": items})
    assert find_limits(text).has_empty_items
    registry.register("orders-value", text)
    # A block of 2**40 items: decoding it would take all memory.
    shown = decode(registry, value=prefix(1) + b"\x80\x80\x80\x80\x80\x40\x00")
    assert "items without bytes" in shown.value_schema.error


@pytest.mark.parametrize(
    "items",
    ["int", "string", ["null", "int"], {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}],
)
def test_other_arrays_are_decoded(items):
    assert not find_limits(json.dumps({"type": "array", "items": items})).has_empty_items


def test_records_that_contain_themselves_are_decoded_while_they_are_small(registry):
    registry.register("orders-value", LIST)
    assert json.loads(decode(registry, value=prefix(1) + b"\x02\x00").value) == {"next": {"next": None}}
    # Each byte is one level more: far beyond what the C stack holds.
    deep = prefix(1) + b"\x02" * 10 * RECURSIVE_BYTES_MAX + b"\x00"
    assert "contains itself" in decode(registry, value=deep).value_schema.error


def test_limits_follow_references_and_namespaces():
    empty = '{"type": "record", "name": "shop.Empty", "fields": []}'
    user = '{"type": "array", "items": "shop.Empty"}'
    assert find_limits(user, [empty]).has_empty_items
    assert not find_limits(user).has_empty_items
    assert find_limits("{").refuse(10**9) == ""


def test_a_decoded_value_is_masked_and_one_that_is_not_is_hidden_whole():
    note = SchemaNote("1", 9, 1, "AVRO")
    shown = ShownRecord("orders", 0, 7, 1000, None, b'{"id": 3, "card": "4711"}', (), None, note)
    assert json.loads(mask_record(shown, [("card",)]).value) == {"id": 3, "card": "****"}
    # The validator's message has the value that it refuses.
    failed = ShownRecord(
        "orders", 0, 7, 1000, None, b"\x00secret", (), None, SchemaNote("1", 9, 1, "", "'secret' is bad")
    )
    masked = mask_record(failed, [("card",)])
    assert b"secret" not in masked.value
    assert "secret" not in masked.value_schema.error


def test_keys_and_headers_of_a_masked_topic_are_masked():
    headers = (("card", b"4711"), ("trace", b"1"))
    shown = ShownRecord("orders", 0, 7, 1000, b'{"card": "4711"}', b"{}", headers, SchemaNote("1", 9, 1, "AVRO"))
    masked = mask_record(shown, [("card",)])
    assert masked.key == b'{"card": "****"}'
    assert masked.headers == (("card", b"****"), ("trace", b"1"))
    # A key that names its schema in a header looks like text.
    failed = ShownRecord("orders", 0, 7, 1000, b"secret", b"{}", (("__key_schema_id", b"\x01"),))
    assert mask_record(failed, [("card",)]).key == b"****"
    note = SchemaNote("1", 9, 1, "", "'secret' is bad")
    failed = ShownRecord("orders", 0, 7, 1000, b"\x00\x00\x00\x00\x01secret", b"{}", (), note)
    masked = mask_record(failed, [("card",)])
    assert masked.key == b"****"
    assert "secret" not in masked.key_schema.error


def test_a_row_has_the_format_and_subject_of_its_schema():
    note = SchemaNote("1", 9, 1, "AVRO")
    shown = ShownRecord("orders", 0, 7, 1000, None, b'{"id": 3}', (), None, note)
    row = view_record(shown, {1: SubjectVersion("orders-value", 2)})
    assert (row.value.kind, row.value.size, row.value.subject.version) == ("avro", 9, 2)
    assert view_record(shown).value.subject is None


# Over a broker and a registry


@pytest.fixture(scope="module")
def running(broker):
    with running_registry(broker.bootstrap, unique("_schemas"), unique("schema-registry")) as running:
        yield running


@pytest.fixture(scope="module")
def decoding(broker, running):
    """A console with a registry, and a topic with records of two schemas and one that is damaged."""
    topic = unique("orders")
    cluster = ConsoleCluster("test", broker.bootstrap, registry_url=running.url)
    masks = '[[masks]]\ntopics = ["hidden-*"]\nfields = ["card"]\n'
    hidden = unique("hidden")
    keys = AvroSerializer(running.url, '"string"')
    with broker.admin() as admin, broker.producer() as producer:
        for name in (topic, hidden):
            values = AvroSerializer(running.url, ORDER)
            admin.create_topic(name, num_partitions=3)
            for number in range(3):
                value = values.serialize(name, {"id": number, "card": f"card-{number}"})
                producer.send(name, value, keys.serialize(name, f"key-{number}", part="key"))
        producer.send(topic, prefix(1) + b"\xff\xff", b"damaged")
        producer.flush()
    with ServedConsole(ConsoleConfig((cluster,), parse_settings(masks), interval_s=600)) as console:
        console.collect()
        console.topic, console.hidden = topic, hidden
        yield console


@pytest.fixture
def decoded(decoding):
    visit = decoding.visitor()
    visit.base = f"/c/test/topics/{decoding.topic}"
    yield visit
    visit.client.close()


def test_messages_show_decoded_records_with_id_and_subject(decoding, decoded):
    page = decoded.get(f"{decoded.base}/messages")
    assert "&#34;card-2&#34;" in page
    assert f"{decoding.topic}-value v1" in page
    assert "not decoded" in page
    assert "ff ff" in page
    assert "&#34;card-2&#34;" not in decoded.get(f"{decoded.base}/messages?raw=1")


def test_a_filter_sees_decoded_fields(decoded):
    page = decoded.get(f"{decoded.base}/messages", params={"where": "value.id == 1"})
    assert "card-1" in page
    assert "card-2" not in page


def test_an_encoded_key_is_found_in_whatever_partition(decoded):
    page = decoded.get(f"{decoded.base}/messages", params={"key": "key-1"})
    assert "card-1" in page
    assert "the only one that can have this key" not in page


def test_an_export_is_decoded(decoded):
    lines = decoded.get(f"{decoded.base}/messages/export", params={"where": "value.id == 1"}).splitlines()
    assert [json.loads(json.loads(line)["value"])["card"] for line in lines] == ["card-1"]


def test_masks_apply_to_decoded_fields(decoding, decoded):
    page = decoded.get(f"/c/test/topics/{decoding.hidden}/messages")
    assert not re.search(r"card-\d", page)
    assert "****" in page
    none = decoded.get(f"/c/test/topics/{decoding.hidden}/messages", params={"where": 'value.card == "card-1"'})
    assert "No record passes." in none


def test_records_are_sent_again_with_their_own_bytes(broker, decoding, decoded):
    copy = unique("copy")
    with broker.admin() as admin:
        admin.create_topic(copy, num_partitions=1)
    decoding.collect()
    listing = decoded.get(f"{decoded.base}/messages", params={"where": "value.id == 1"})
    place = re.search(r'name="record" value="(\d+/\d+)"', listing)[1]
    decoded.post(f"{decoded.base}/messages", f"{decoded.base}/resend", target=copy, record=place)
    raw = decoded.get(f"/c/test/topics/{copy}/messages/export?raw=1")
    assert "base64" in raw or "\\u0000" in raw
    assert "card-1" in decoded.get(f"/c/test/topics/{copy}/messages")
