"""Records that no registry writes: they are skipped, and never end the reader."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.registry.store import RegistryState
from klamm.registry.store.log_records import INT_MAX, LogKey, encode_json, encode_key, parse_int, parse_key
from klamm.registry.store.subjects import parse_subject

from .small_service import AsgiClient, SmallService
from .small_store import record

A = record("R", a=False)


def schema_key(subject="s", version=1, **other):
    return {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1, **other}


def schema_value(**other):
    return {"subject": "s", "version": 1, "id": 1, "schema": A, "deleted": False, **other}


DAMAGED = {
    "half of a pair in the subject": (schema_key("\ud800"), schema_value()),
    "half of a pair in the schema": (schema_key(), schema_value(schema='"\ud800"')),
    "half of a pair in a context": ({"keytype": "CONTEXT", "context": "\udc00", "magic": 0}, {"context": "\udc00"}),
    "a list as type of the key": ({"keytype": [[[]]], "magic": 1}, {}),
    "an endless version to delete": ({"keytype": "DELETE_SUBJECT", "subject": "s"}, {"version": float("inf")}),
    "an endless id": (schema_key(), schema_value(id=float("inf"))),
    "no number as id": (schema_key(), schema_value(id=float("nan"))),
    "an id of more than four bytes": (schema_key(), schema_value(id=INT_MAX + 1)),
    "a negative id": (schema_key(), schema_value(id=-7)),
    "a truth as id": (schema_key(), schema_value(id=True)),
    "a version of more than four bytes": (schema_key(version=INT_MAX + 1), schema_value()),
    "a truth as version": (schema_key(version=True), schema_value()),
    "an endless reference": (
        schema_key(),
        schema_value(references=[{"name": "n", "subject": "t", "version": float("inf")}]),
    ),
    "a reference of more than four bytes": (
        schema_key(),
        schema_value(references=[{"name": "n", "subject": "t", "version": INT_MAX + 1}]),
    ),
    "tags that are no texts": (schema_key(), schema_value(metadata={"tags": {"a": [1]}})),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_record_is_skipped(case):
    key, value = (json.dumps(part).encode() for part in DAMAGED[case])
    state = RegistryState()
    assert state.replay(key, value) is not None
    assert state.skipped == 1
    assert not state.subjects
    assert state.context(".").next_id == 1
    assert state.replay(json.dumps(schema_key("good")).encode(), json.dumps(schema_value()).encode()) is None
    assert state.version(parse_subject("good"), 1).schema_id == 1


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["SCHEMA", "CONFIG", "MODE", "DELETE_SUBJECT", "CLEAR_SUBJECT", "ASSOC", "\ud800", "s", ":.c:s"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [
    *("keytype", "subject", "version", "magic", "context", "id", "schema", "schemaType", "references", "metadata"),
    *("ruleSet", "deleted", "mode", "idFloors", "name", "resourceName", "resourceNamespace", "resourceType"),
    *("associationType", "resourceId", "lifecycle", "createTs"),
]
KINDS = ["SCHEMA", "CONFIG", "MODE", "DELETE_SUBJECT", "CLEAR_SUBJECT", "CONTEXT", "ASSOC", "NOOP"]


@given(
    kind=st.sampled_from(KINDS),
    key=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4),
    value=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5),
    whole=st.booleans(),
)
def test_no_record_raises(kind, key, value, whole):
    state = RegistryState()
    key = {"keytype": kind, **(schema_key() | {"keytype": kind} if whole else {}), **key}
    value = schema_value() | value if whole else value
    state.replay(json.dumps(key).encode(), json.dumps(value).encode())
    assert json.dumps([str(subject) for subject in state.subjects], ensure_ascii=False).encode()


@given(st.binary(max_size=40), st.none() | st.binary(max_size=40))
def test_no_bytes_raise(key, value):
    RegistryState().replay(key, value)


@pytest.mark.parametrize(("value", "number"), [(7, 7), ("12", 12), (3.0, 3), (-1, -1), (INT_MAX, INT_MAX)])
def test_numbers_of_four_bytes(value, number):
    assert parse_int(value) == number


@pytest.mark.parametrize("value", [True, 1.5, float("inf"), "x", "9" * 5000, 1 << 31, None, [], "\u0663"])
def test_what_is_no_number_of_four_bytes(value):
    with pytest.raises(ValueError, match="not a whole number"):
        parse_int(value)


@pytest.fixture
def http():
    client = AsgiClient(SmallService(), body_bytes_max=200_000)
    yield client
    client.close()


@pytest.mark.parametrize(
    "body",
    [
        b'{"schema": "\\"str\\ud800\\""}',
        b'{"schema": "\\"string\\"", "metadata": {"properties": {"a": "\\udfff"}}}',
        b'{"schema": "\\"string\\"", "references": [{"name": "\\ud800", "subject": "s", "version": 1}]}',
        b'{"schema": "\\"string\\"", "references": [{"name": "n", "subject": "s", "version": 2147483648}]}',
        b'{"schema": "\\"string\\"", "references": [{"name": "n", "subject": "s", "version": 1e999}]}',
        b'{"schema": "\\"string\\"", "id": 1e999}',
        b'{"schema": "\\"string\\"", "id": 2147483648}',
        b'{"schema": "\\"string\\"", "version": true}',
    ],
)
def test_a_request_with_such_values_is_refused(http, body):
    answer = http.post("/subjects/s/versions", body)
    assert 400 <= answer.status < 500, answer.body
    assert http.get("/subjects").json() == []


def test_ids_end(http):
    http.put("/mode/s", {"mode": "IMPORT"})
    assert http.post("/subjects/s/versions", {"schema": A, "id": INT_MAX, "version": 1}).status == 200
    http.put("/mode/s", {"mode": "READWRITE"})
    refusal = http.post("/subjects/t/versions", {"schema": record("R", b=False)})
    assert (refusal.status, "used up" in refusal.json()["message"]) == (422, True)


@pytest.mark.parametrize(
    "subject", ["", "s", ":.c:s", "a/b ü", "日本", 'a"b', "a\\b", "tab\t", "\x00", "\x7f", "\u2028", "{}"]
)
def test_keys_of_any_subject_have_the_bytes_of_a_json_encoder(subject):
    """Keys of schemas have a shorter way than others; compaction compares their bytes with those of any registry."""
    for version in (1, 999_999_999, INT_MAX):
        fields = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
        key = LogKey("SCHEMA", subject, version)
        assert encode_key(key) == encode_json(fields)
        assert parse_key(encode_key(key)) == key
        for spelling in (json.dumps(fields), json.dumps(dict(sorted(fields.items()))), json.dumps(fields, indent=1)):
            assert parse_key(spelling.encode()) == key


@pytest.mark.parametrize(
    "key",
    [
        b'{"keytype":"SCHEMA","subject":"\xff","version":1,"magic":1}',
        b'{"keytype":"SCHEMA","subject":"\xed\xa0\x80","version":1,"magic":1}',
        b'{"keytype":"SCHEMA","subject":"\\ud800","version":1,"magic":1}',
        b'{"keytype":"SCHEMA","subject":"\\uD800","version":1,"magic":1}',
        b'{"keytype":"SCHEMA","subject":"a\nb","version":1,"magic":1}',
        b'{"keytype":"SCHEMA","subject":"s","version":0,"magic":1}',
        b'{"keytype":"SCHEMA","subject":"s","version":01,"magic":1}',
        b'{"keytype":"SCHEMA","subject":"s","version":-1,"magic":1}',
        b'{"keytype":"SCHEMA","subject":"s","version":2147483648,"magic":1}',
        b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}}',
    ],
)
def test_damaged_keys_of_schemas_are_skipped(key):
    assert parse_key(key) is None
