"""Records against the bytes Apache Kafka 4.3.1 wrote and the JSON its own tools print for them."""

import base64
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.metadata.records import RECORD_TYPES, decode_record, decode_versioned_record, encode_record
from klamm.model.errors import LocalProtocolError, RemoteProtocolError
from klamm.model.ids import uuid_to_str
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages import control_records, group_records, metadata_records, transaction_records
from klamm.protocol.schema import Array, Scalar, Sized, declaration, uuid

GOLDEN = Path(__file__).parent / "golden"


def rows(name: str) -> list[list[str]]:
    return [line.split("\t") for line in (GOLDEN / name).read_text().splitlines()]


def log_rows(name: str) -> list[tuple[int, bytes, dict[str, Any]]]:
    return [(int(offset), bytes.fromhex(value), json.loads(text)) for offset, value, text in rows(name)]


def to_json(message: Any, version: int) -> dict[str, Any]:
    """A message as Kafka's tools print it: tagged fields only when they are set."""
    out = {}
    for declared in declaration(type(message)).fields:
        if not declared.lives_in(version):
            continue
        value = getattr(message, declared.name)
        if declared.tag is not None and value == declared.make_default():
            continue
        out[_camel(declared.name)] = _value(declared.type, value, version)
    return out


def _value(wire_type: Any, value: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(wire_type, Array):
        return [_value(wire_type.element, item, version) for item in value]
    if wire_type is uuid:
        return uuid_to_str(value)
    if isinstance(wire_type, Sized) and wire_type.name == "blob":
        return base64.b64encode(value).decode()
    return to_json(value, version) if isinstance(wire_type, type) else value


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


MODULES = (metadata_records, control_records, group_records, transaction_records)
CLASSES: dict[str, type[Any]] = {
    name: cls
    for module in MODULES
    for name, cls in vars(module).items()
    if isinstance(cls, type) and hasattr(cls, "__wire__") and cls.__module__ == module.__name__
}
MESSAGES = [cls for cls in CLASSES.values() if declaration(cls).api_key >= 0]


@pytest.mark.parametrize(("name", "version", "written", "text"), rows("every_record_version.tsv"))
def test_a_record_kafka_wrote_is_read_and_written_again(name: str, version: str, written: str, text: str) -> None:
    body = bytes.fromhex(written)
    message, end = decode(CLASSES[name], int(version), body)
    assert end == len(body)
    assert to_json(message, int(version)) == json.loads(text)
    assert encode(message, int(version)) == body


def test_golden_bytes_cover_every_version_of_every_record() -> None:
    covered = {(name, int(version)) for name, version, *_ in rows("every_record_version.tsv")}
    declared = {
        (cls.__name__, version)
        for cls in MESSAGES
        for version in range(declaration(cls).versions[0], declaration(cls).versions[1] + 1)
    }
    assert covered == declared


@pytest.mark.parametrize("name", ["metadata_log.tsv", "metadata_snapshot.tsv"])
def test_the_metadata_log_of_a_kafka_node_is_understood(name: str) -> None:
    for _, value, printed in log_rows(name):
        record, version = decode_versioned_record(value)
        assert version == printed["version"]
        assert _shouted(type(record).__name__) == printed["type"]
        assert to_json(record, version) == printed["data"]
        assert encode_record(record, version) == value


def _shouted(name: str) -> str:
    return "".join("_" + c if c.isupper() and i else c for i, c in enumerate(name)).upper()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x01",
        b"\x00\x02\x00",
        b"\x01\x06\x00",
        b"\x01\x63\x00",
        b"\x01\x02\x01",
        b"\x01\x02\x00\x04ab",
        encode_record(metadata_records.NoOpRecord()) + b"!",
    ],
)
def test_a_value_that_is_no_record_is_one_kind_of_error(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_record(value)


def test_a_message_that_is_no_metadata_record_is_not_written() -> None:
    with pytest.raises(LocalProtocolError):
        encode_record(group_records.OffsetCommitValue())  # type: ignore[arg-type]


def test_every_record_type_has_its_own_id() -> None:
    types_of_kafka_4_3 = 26
    assert len(RECORD_TYPES) == types_of_kafka_4_3
    assert not {6, 13, 16} & set(RECORD_TYPES), "ids Kafka once used and gave up"


_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    "string": st.text(max_size=20),
    "blob": st.binary(max_size=20),
}


def values(wire_type: Any, version: int) -> st.SearchStrategy[Any]:
    if isinstance(wire_type, Scalar | Sized):
        return _SCALARS[wire_type.name]
    if isinstance(wire_type, Array):
        return st.lists(values(wire_type.element, version), max_size=3)
    return messages(wire_type, version)


def messages(cls: type[Any], version: int) -> st.SearchStrategy[Any]:
    parts = {}
    for declared in declaration(cls).fields:
        if declared.lives_in(version):
            strategy = values(declared.type, version)
            parts[declared.name] = st.none() | strategy if declared.nullable_in(version) else strategy
    return st.builds(cls, **parts)


@st.composite
def versioned_messages(draw: st.DrawFn) -> tuple[Any, int]:
    cls = draw(st.sampled_from(MESSAGES))
    version = draw(st.integers(*declaration(cls).versions))
    return draw(messages(cls, version)), version


@given(versioned_messages())
def test_whatever_is_written_is_read_back(case: tuple[Any, int]) -> None:
    message, version = case
    body = encode(message, version)
    assert decode(type(message), version, body) == (message, len(body))
    if type(message) in RECORD_TYPES.values():
        assert decode_versioned_record(encode_record(message, version)) == (message, version)


@given(st.sampled_from(log_rows("metadata_log.tsv")), st.data())
def test_damaged_values_raise_one_kind_of_error(row: tuple[int, bytes, Any], data: st.DataObject) -> None:
    value = bytearray(row[1])
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(RemoteProtocolError):
        decode_record(bytes(value[: data.draw(st.integers(0, len(value)))]))
