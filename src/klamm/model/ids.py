"""Identifiers: 16-byte uuids with Kafka's text form, and topic partitions."""

import base64
import binascii
from typing import NamedTuple, NewType

Uuid = NewType("Uuid", bytes)
"""A 16-byte id. Kept as bytes: it is a dictionary key on the hot path and never computed with."""

TopicIdPartition = tuple[bytes, int]
"""Topic id and partition index."""

ZERO_UUID = Uuid(bytes(16))  # "no id" in every API
METADATA_TOPIC_ID = Uuid(bytes(15) + b"\x01")


class TopicPartition(NamedTuple):
    """A partition by its topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def uuid_to_str(value: bytes) -> str:
    """The 22 characters Kafka's tools print for a uuid."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def uuid_from_str(text: str) -> Uuid:
    """Parse a uuid as Kafka's tools print it; ValueError for other text."""
    # validate=True: without it Python skips characters that are not base64, and finds an id in any text.
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not a base64 uuid of 22 characters") from error
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a base64 uuid of 22 characters")
    return Uuid(raw)
