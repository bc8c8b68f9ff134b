"""Which header goes with which message, and the traps in it."""

import pytest

from klamm.model.errors import LocalProtocolError, RemoteProtocolError
from klamm.protocol import (
    APIS,
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from klamm.protocol.header import request_header_version, response_header_version


def test_a_request_of_an_old_version_has_header_v1():
    data = encode_request_header(RequestHeader(12, 3, 77, "me"))
    assert data.hex(" ") == "00 0c 00 03 00 00 00 4d 00 02 6d 65"
    assert decode_request_header(data) == (RequestHeader(12, 3, 77, "me"), len(data))


def test_a_flexible_request_has_header_v2_but_an_old_client_id():
    data = encode_request_header(RequestHeader(12, 4, 77, "me"))
    assert data.hex(" ") == "00 0c 00 04 00 00 00 4d 00 02 6d 65 00"
    assert decode_request_header(data) == (RequestHeader(12, 4, 77, "me"), len(data))


def test_controlled_shutdown_v0_has_no_client_id():
    data = encode_request_header(RequestHeader(7, 0, 5, "ignored"))
    assert data.hex(" ") == "00 07 00 00 00 00 00 05"
    assert decode_request_header(data + b"body") == (RequestHeader(7, 0, 5), 8)


@pytest.mark.parametrize("client_id", [None, "", "grüße"])
@pytest.mark.parametrize("version", [3, 4])
def test_client_ids_travel(client_id, version):
    header = RequestHeader(12, version, -1, client_id)
    data = encode_request_header(header)
    assert decode_request_header(b"xx" + memoryview(data) + b"body", 2) == (header, 2 + len(data))


def test_tagged_fields_of_a_header_are_skipped():
    data = encode_request_header(RequestHeader(12, 4, 1, "c"))[:-1] + b"\x02\x00\x01a\x07\x00"
    assert decode_request_header(data + b"body")[1] == len(data)


def test_api_versions_is_always_answered_with_header_v0():
    for version in range(10):
        assert encode_response_header(9, 18, version) == b"\0\0\0\x09"
        assert request_header_version(18, version) == (2 if version >= 3 else 1)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_headers_follow_the_first_flexible_version(api):
    for version in range(api.versions[0], api.versions[1] + 1):
        flexible = api.flexible_since is not None and version >= api.flexible_since
        assert request_header_version(api.key, version) == (2 if flexible else 1)
        assert response_header_version(api.key, version) == (1 if flexible and api.key != 18 else 0)
        data = encode_response_header(123, api.key, version)
        assert decode_response_header(data, api.key, version) == (123, len(data))


def test_headers_agree_with_kio():
    from kio.index import load_request_schema, load_response_schema

    for api in APIS.values():
        for version in range(api.versions[0], api.versions[1] + 1):
            request = load_request_schema(api.key, version).__header_schema__.__version__
            response = load_response_schema(api.key, version).__header_schema__.__version__
            assert request == request_header_version(api.key, version)
            assert response == response_header_version(api.key, version)


@pytest.mark.parametrize("cut", range(13))
def test_cut_headers_are_refused(cut):
    data = encode_request_header(RequestHeader(12, 4, 77, "me"))
    with pytest.raises(RemoteProtocolError):
        decode_request_header(data[:cut])


def test_a_client_id_longer_than_the_request_is_refused():
    with pytest.raises(RemoteProtocolError):
        decode_request_header(bytes.fromhex("000c 0003 0000004d 7fff 6d65"))


def test_an_unknown_api_is_read_far_enough_to_name_it():
    header, _ = decode_request_header(bytes.fromhex("7777 0003 0000004d ffff"))
    assert header == RequestHeader(0x7777, 3, 77, None)


def test_a_header_that_cannot_exist_is_ours_to_fix():
    with pytest.raises(LocalProtocolError):
        encode_request_header(RequestHeader(12, 3, 2**31, "c"))
    with pytest.raises(LocalProtocolError):
        encode_request_header(RequestHeader(12, 3, 1, "c" * 40000))
