"""The bytes before every request and response: API key, version, correlation id and client id.

Request header v2 (tagged fields) goes with flexible versions and v1 with the others; v0, without a client id, belongs
to ControlledShutdown v0 alone. Responses have v1 with flexible versions and v0 with the others, with one exception:
ApiVersions is always answered with v0, because the client does not have the broker's versions yet. The
client id keeps its two-byte length in every version, for the same reason the other way round.
"""

import struct
from dataclasses import dataclass

from klamm.model.buffer import Buffer
from klamm.model.errors import LocalProtocolError, RemoteProtocolError
from klamm.protocol.apis import API_VERSIONS, flexible_since
from klamm.protocol.budget import HEADER_TAGS_MAX
from klamm.protocol.reader import skip_tags
from klamm.protocol.varint import decode_uvarint

CONTROLLED_SHUTDOWN = 7

_START = struct.Struct(">hhi")
_START_AND_LENGTH = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")


@dataclass(slots=True)
class RequestHeader:
    """The fields in front of every request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def request_header_version(api_key: int, api_version: int) -> int:
    """Which header a request has; an unknown API is read as v1, so that the refusal can name it."""
    if api_key == CONTROLLED_SHUTDOWN and api_version == 0:
        return 0
    return 2 if api_version >= flexible_since(api_key) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """Which header a response has."""
    return 1 if api_key != API_VERSIONS and api_version >= flexible_since(api_key) else 0


def decode_request_header(buf: Buffer, offset: int = 0) -> tuple[RequestHeader, int]:
    """Read a request's header; returns it and the offset of the request itself."""
    try:
        api_key, api_version, correlation_id = _START.unpack_from(buf, offset)
        offset += _START.size
        if api_key == CONTROLLED_SHUTDOWN and api_version == 0:
            return RequestHeader(api_key, api_version, correlation_id), offset
        client_id, offset = _decode_client_id(buf, offset)
        if api_version >= flexible_since(api_key):
            tags, offset = decode_uvarint(buf, offset)
            if tags:
                if tags > HEADER_TAGS_MAX:
                    raise RemoteProtocolError(f"a request header with {tags} tagged fields")
                offset = skip_tags(buf, tags, offset, len(buf))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a request header ends early or holds no valid text: {error}") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id), offset


def _decode_client_id(buf: Buffer, offset: int) -> tuple[str | None, int]:
    length = (buf[offset] << 8) | buf[offset + 1]
    offset += 2
    # A negative length, -1 in practice: null.
    if length > 32767:
        return None, offset
    end = offset + length
    if end > len(buf):
        raise RemoteProtocolError("a client id is longer than the rest of the request")
    return str(buf[offset:end], "utf-8"), end


def encode_request_header(header: RequestHeader) -> bytes:
    """The bytes before a request of `header.api_key` in `header.api_version`."""
    key, version, client_id = header.api_key, header.api_version, header.client_id
    kind = request_header_version(key, version)
    try:
        if kind == 0:
            return _START.pack(key, version, header.correlation_id)
        text = b"" if client_id is None else client_id.encode()
        start = _START_AND_LENGTH.pack(key, version, header.correlation_id, -1 if client_id is None else len(text))
    except struct.error as error:
        raise LocalProtocolError(f"{header} cannot be written: {error}") from error
    return start + text + b"\0" if kind == 2 else start + text


def encode_response_header(correlation_id: int, api_key: int, api_version: int) -> bytes:
    """The bytes before a response."""
    start = _CORRELATION.pack(correlation_id)
    return start + b"\0" if response_header_version(api_key, api_version) else start


def decode_response_header(buf: Buffer, api_key: int, api_version: int, offset: int = 0) -> tuple[int, int]:
    """Read a response's header; returns the correlation id and the offset of the response itself."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(buf, offset)
        offset += _CORRELATION.size
        if response_header_version(api_key, api_version):
            tags, offset = decode_uvarint(buf, offset)
            if tags:
                offset = skip_tags(buf, tags, offset, len(buf))
    except (struct.error, IndexError) as error:
        raise RemoteProtocolError(f"a response header ends early: {error}") from error
    return correlation_id, offset
