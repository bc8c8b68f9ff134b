"""Objects that follow one another in a body come out whole and in order, wherever the network cut it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.rest.core.record_stream import BadStream, RecordStream

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4)


def chunks_of(data, cuts):
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@settings(max_examples=40)
@given(
    st.lists(OBJECTS, max_size=6),
    st.sampled_from(["", " ", "\n", "\r\n\t"]),
    st.lists(st.integers(0, 10_000), max_size=20),
    st.booleans(),
)
def test_records_do_not_depend_on_the_chunks(records, blank, cuts, ascii_only):
    data = "".join(json.dumps(record, ensure_ascii=ascii_only) + blank for record in records).encode(
        "utf-8", "surrogatepass"
    )
    stream = RecordStream(1 << 20)
    parsed = []
    for chunk in chunks_of(data, cuts):
        parsed += stream.feed(chunk)
    stream.finish()
    assert parsed == records


@given(st.binary(max_size=60), st.lists(st.integers(0, 100), max_size=5))
def test_any_bytes_are_records_or_refused(data, cuts):
    stream = RecordStream(1000)
    try:
        for chunk in chunks_of(data, cuts):
            stream.feed(chunk)
        stream.finish()
    except BadStream:
        return
    assert data.strip() == b"" or data.lstrip().startswith(b"{")


def test_single_bytes_take_linear_time():
    data = json.dumps({"value": 'x"{}[]\\' * 20_000}).encode()
    stream = RecordStream(1 << 20)
    parsed = [record for at in range(len(data)) for record in stream.feed(data[at : at + 1])]
    assert parsed == [json.loads(data)]


def test_records_before_a_fault_are_kept():
    stream = RecordStream(1000)
    with pytest.raises(BadStream, match="not JSON") as refusal:
        stream.feed(b'{"a": 1}{"b": 2}{"c": }{"d": 4}')
    assert refusal.value.records == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("cut", range(20))
@pytest.mark.parametrize("fault", [b"\xff", b'{"c": "\xc3("}', b"\xe2\x82{}"])
def test_records_before_bytes_that_are_not_utf_8_are_kept(fault, cut):
    begin, end = chunks_of('{"a": "ä"} {"b": 2}'.encode() + fault, [cut])
    stream = RecordStream(1000)
    records = stream.feed(begin)
    with pytest.raises(BadStream, match="not UTF-8") as refusal:
        stream.feed(end)
    assert records + refusal.value.records == [{"a": "ä"}, {"b": 2}]


@pytest.mark.parametrize("text", ["[1]", "1", '"a"', "null", ',{"a":1}', "}"])
def test_a_record_is_an_object(text):
    with pytest.raises(BadStream, match="a record is a JSON object"):
        RecordStream(1000).feed(text.encode())


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', '{"a": [}]}', '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", '{"a" 1}']
)
def test_what_is_not_json_is_refused(text):
    with pytest.raises(BadStream):
        RecordStream(1 << 20).feed(text.encode())


@pytest.mark.parametrize("chunk_size", [1, 7, 5000])
def test_a_record_may_not_be_longer_than_the_limit(chunk_size):
    stream = RecordStream(100)
    data = json.dumps({"value": "x" * 1000}).encode()
    whole = data[: 100 // chunk_size * chunk_size]
    for at in range(0, len(whole), chunk_size):
        assert stream.feed(whole[at : at + chunk_size]) == []
    # Refused before the whole record was buffered.
    with pytest.raises(BadStream, match="longer than 100 bytes") as refusal:
        stream.feed(data[len(whole) : len(whole) + max(chunk_size, 100)])
    assert refusal.value.too_large


@pytest.mark.parametrize("data", [b'{"a": 1', b'{"a": "\xc3', b'{"a": 1}{', b"\xc3"])
def test_a_body_may_not_end_inside_a_record(data):
    stream = RecordStream(1000)
    stream.feed(data)
    with pytest.raises(BadStream, match="ends inside a record"):
        stream.finish()
