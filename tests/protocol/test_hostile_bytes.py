"""Bytes from nowhere: every message either reads them or raises one error, and none of them costs memory."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.model.errors import RemoteProtocolError
from klamm.protocol import APIS, decode, decode_request_header, encode
from klamm.protocol.schema import array, declaration, int8, int64, message, string, struct, uuid, wire

EVERY_API = pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)


def forms(api):
    """Each class of an API with each of its versions."""
    first, last = declaration(api.request).versions
    for cls in (api.request, api.response):
        for version in range(first, last + 1):
            yield cls, version


def read_or_refuse(cls, version, data):
    try:
        _, end = decode(cls, version, data)
    except RemoteProtocolError:
        return False
    assert 0 <= end <= len(data)
    return True


@EVERY_API
@settings(max_examples=25)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(api, data):
    for cls, version in forms(api):
        read_or_refuse(cls, version, data)


@EVERY_API
@settings(max_examples=4)
@given(seed=st.integers(0, 2**64), where=st.floats(0, 1), value=st.integers(0, 255))
def test_changed_bytes_are_read_or_refused(api, maker, seed, where, value):
    for cls, version in forms(api):
        data = bytearray(encode(maker(seed).message(cls, version), version))
        if data:
            data[min(int(where * len(data)), len(data) - 1)] = value
        read_or_refuse(cls, version, data)


@EVERY_API
def test_every_cut_is_refused(api, maker):
    for cls, version in forms(api):
        data = encode(maker(5).message(cls, version), version)
        cuts = range(len(data)) if len(data) < 60 else {*range(20), *range(20, len(data), len(data) // 20)}
        for cut in cuts:
            assert not read_or_refuse(cls, version, data[:cut]), (cls, version, cut)
            assert not read_or_refuse(cls, version, memoryview(data)[:cut]), (cls, version, cut)


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xfe\xff\xff\xff\x0f", b"\x7f\xff"])
@pytest.mark.parametrize("padding", [0, 2, 8])
def test_a_huge_count_costs_nothing(count, padding):
    """Each message is given a count of two thousand million at each of its first places."""
    classes = [form for api in APIS.values() for form in forms(api)]
    attacks = [bytes(padding) * 3 + count * 4, *(bytes(lead) + count + bytes(padding) for lead in range(12))]
    for cls, version in classes:
        read_or_refuse(cls, version, b"")  # compiled before the measurement
    tracemalloc.start()
    try:
        for cls, version in classes:
            # Other threads of the process allocate too, but not every time; what a count allocates, it always does.
            costs = (cost(cls, version, attacks) for _ in range(5))
            assert any(cost < 64_000 for cost in costs), (cls, version)
    finally:
        tracemalloc.stop()


def cost(cls, version, attacks):
    """The most memory that was held at once."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    for data in attacks:
        read_or_refuse(cls, version, data)
    return tracemalloc.get_traced_memory()[1] - before


@settings(max_examples=300)
@given(data=st.binary(max_size=60), key=st.sampled_from([*APIS, 7, 4, -1, 9999]), version=st.integers(-1, 20))
def test_random_headers_are_read_or_refused(data, key, version):
    data = key.to_bytes(2, signed=True) + version.to_bytes(2, signed=True) + data
    try:
        header, end = decode_request_header(data)
    except RemoteProtocolError:
        return
    assert (header.api_key, header.api_version) == (key, version)
    assert end <= len(data)


@struct
class Nothing:
    """No byte on the wire before v1: a count of these would be free for the sender."""

    value: int = wire(int8, since=1)


@message(versions=(0, 2), flexible=2)
class Counts:
    nothings: list[Nothing] = wire(array(Nothing), until=0)
    uuids: list[bytes] = wire(array(uuid), since=1)
    longs: list[int] = wire(array(int64), since=1)
    texts: list[str] = wire(array(string), since=1)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("version", range(3))
def test_no_element_is_made_before_the_bytes_are_counted(version, before):
    empty = b"\x01" if version == 2 else bytes(4)
    huge = b"\xff\xff\xff\xff\x07" if version == 2 else b"\x7f\xff\xff\xff"
    data = empty * before * (version > 0) + huge + bytes(1000)
    read_or_refuse(Counts, version, b"")
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="longer than the rest"):
            decode(Counts, version, data)
        assert tracemalloc.get_traced_memory()[1] < 8_000
    finally:
        tracemalloc.stop()
