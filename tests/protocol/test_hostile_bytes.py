"""Bytes from nowhere: every message either reads them or raises one error, and none of them costs memory."""

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.model.errors import RemoteProtocolError
from klamm.protocol import APIS, decode, decode_request_header, encode
from klamm.protocol.schema import declaration

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
@settings(max_examples=25, deadline=None)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(api, data):
    for cls, version in forms(api):
        read_or_refuse(cls, version, data)


@EVERY_API
@settings(max_examples=4, deadline=None)
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
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            for data in attacks:
                read_or_refuse(cls, version, data)
            assert tracemalloc.get_traced_memory()[1] - before < 64_000, (cls, version)
    finally:
        tracemalloc.stop()


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60), key=st.sampled_from([*APIS, 7, 4, -1, 9999]), version=st.integers(-1, 20))
def test_random_headers_are_read_or_refused(data, key, version):
    data = struct.pack(">hh", key, version) + data
    try:
        header, end = decode_request_header(data)
    except RemoteProtocolError:
        return
    assert (header.api_key, header.api_version) == (key, version)
    assert end <= len(data)
