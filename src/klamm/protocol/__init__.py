"""The wire: bytes to messages and back, without I/O.

It owns the frames of a stream (`framing`), how messages are declared (`schema`), the readers and writers compiled from
the declarations (`codec`), the headers before them (`header`), the table of all APIs (`apis`) and the messages
themselves (`messages/<family>.py`). It does not own what the messages mean, nor the record batches inside them.

    frame  ->  decode_request_header  ->  APIS[key].request  ->  decode(cls, version, frame, offset)

Bytes of a peer that mean nothing are a `RemoteProtocolError`, whatever they are. A message that cannot be written is a
`LocalProtocolError`: the fault is ours.
"""

from klamm.protocol.apis import APIS, Api, served_on
from klamm.protocol.codec import decode, encode, encode_into
from klamm.protocol.header import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)

__all__ = [
    "APIS",
    "Api",
    "RequestHeader",
    "decode",
    "decode_request_header",
    "decode_response_header",
    "encode",
    "encode_into",
    "encode_request_header",
    "encode_response_header",
    "served_on",
]
