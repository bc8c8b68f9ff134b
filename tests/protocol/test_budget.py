"""No more elements than a request may carry, wherever in it they stand; slices read the same message."""

import tracemalloc

import pytest

from klamm.model.errors import ElementLimitError, LocalProtocolError, RemoteProtocolError
from klamm.protocol import APIS, decode, decode_request_header, encode, encode_request_header
from klamm.protocol.budget import ELEMENTS_MAX, HEADER_TAGS_MAX, elements_max
from klamm.protocol.codec import decode_in_slices, encode_in_slices
from klamm.protocol.header import RequestHeader
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.schema import array, int32, message, string, struct, wire
from klamm.protocol.source import SLICE_ELEMENTS


@struct
class Inner:
    numbers: list[int] = wire(array(int32))
    names: list[str] = wire(array(string))


@message(versions=(0, 1), flexible=1)
class Outer:
    inners: list[Inner] = wire(array(Inner))


def run(slices):
    """The end of a generator, and how often it gave way."""
    count = 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize("version", [0, 1])
def test_elements_of_every_depth_count(version):
    data = encode(Outer(inners=[Inner(numbers=[1, 2, 3], names=["a", "b"])] * 4), version)
    total = 4 + 4 * 5
    assert decode(Outer, version, data, elements_max=total)[1] == len(data)
    for limit in range(total):
        with pytest.raises(ElementLimitError):
            decode(Outer, version, data, elements_max=limit)
        with pytest.raises(ElementLimitError):
            run(decode_in_slices(Outer, version, data, elements_max=limit))


def test_tagged_fields_count():
    data = encode(Outer(), 1)[:-1] + b"\x03" + b"\x40\x00" * 3
    assert decode(Outer, 1, data, elements_max=3)[1] == len(data)
    with pytest.raises(ElementLimitError):
        decode(Outer, 1, data, elements_max=2)


def test_nothing_is_made_of_an_array_over_the_limit():
    data = encode(MetadataRequest(topics=[MetadataRequestTopic(name="")] * 100_000), 12)
    decode(MetadataRequest, 12, encode(MetadataRequest(), 12))
    tracemalloc.start()
    try:
        with pytest.raises(ElementLimitError):
            decode(MetadataRequest, 12, data, elements_max=ELEMENTS_MAX)
        assert tracemalloc.get_traced_memory()[1] < 100_000  # other threads allocate too
    finally:
        tracemalloc.stop()


def test_tags_of_a_header_are_few():
    header = encode_request_header(RequestHeader(3, 12, 1, "c"))[:-1]
    assert decode_request_header(header + bytes([HEADER_TAGS_MAX]) + b"\x40\x00" * HEADER_TAGS_MAX)[0].client_id == "c"
    with pytest.raises(RemoteProtocolError, match="tagged fields"):
        decode_request_header(header + bytes([HEADER_TAGS_MAX + 1]) + b"\x40\x00" * (HEADER_TAGS_MAX + 1))


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_slices_read_the_same_message(api, maker):
    for version in range(api.versions[0], api.versions[1] + 1):
        data = encode(maker(7).message(api.request, version), version)
        assert run(decode_in_slices(api.request, version, data))[0] == decode(api.request, version, data)
        for cut in range(0, len(data), max(len(data) // 5, 1)):
            with pytest.raises(RemoteProtocolError):
                run(decode_in_slices(api.request, version, data[:cut]))


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_slices_write_the_same_bytes(api, maker):
    for version in range(api.versions[0], api.versions[1] + 1):
        for made in (maker(7).message(api.request, version), maker(8).message(api.response, version)):
            pieces = []
            run(encode_in_slices(made, version, pieces))
            assert b"".join(pieces) == encode(made, version)


def test_what_cannot_be_written_is_refused_in_slices_too():
    with pytest.raises(LocalProtocolError, match="cannot be written"):
        run(encode_in_slices(MetadataRequest(topics=[None]), 12, []))


def test_a_large_answer_gives_way_often():
    request = MetadataRequest(topics=[MetadataRequestTopic(name=str(number)) for number in range(9_000)])
    _, count = run(encode_in_slices(request, 12, []))
    assert count >= 9_000 // SLICE_ELEMENTS


def test_a_large_message_gives_way_often():
    request = MetadataRequest(topics=[MetadataRequestTopic(name=str(number)) for number in range(9_000)])
    (message_read, _), count = run(decode_in_slices(MetadataRequest, 12, encode(request, 12)))
    assert message_read == request
    assert count >= 9_000 // SLICE_ELEMENTS


def test_every_request_has_a_limit():
    for api in APIS.values():
        assert 1_000 <= elements_max(api.key) <= 100_000
    assert elements_max(9999) == ELEMENTS_MAX
