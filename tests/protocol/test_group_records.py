"""A member's record as Apache Kafka 4.3.1 wrote it: a null struct inside of a tagged field, which no API has."""

from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataValue,
)

WRITTEN_BY_KAFKA = bytes.fromhex(
    "0000066b6c616d6d0b2f3132372e302e302e310212636c69656e742d39653437636335352d3701000493e00001000100"
)


def test_a_member_of_the_new_protocol_says_so_by_a_null():
    value, end = decode(ConsumerGroupMemberMetadataValue, 0, WRITTEN_BY_KAFKA)
    assert end == len(WRITTEN_BY_KAFKA)
    assert (value.client_id, value.subscribed_topic_names) == ("klamm", ["client-9e47cc55-7"])
    assert value.classic_member_metadata is None
    assert encode(value, 0) == WRITTEN_BY_KAFKA


def test_a_classic_member_keeps_its_protocols():
    protocols = [ClassicProtocol(name="range", metadata=b"\x00\x01")]
    made = ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        subscribed_topic_regex=None,
        server_assignor=None,
        classic_member_metadata=ClassicMemberMetadata(session_timeout_ms=45_000, supported_protocols=protocols),
    )
    data = encode(made, 0)
    # one tagged field, number 0, 17 bytes: it is there (1), 45 s, one protocol, no tags in either struct
    assert data.endswith(bytes.fromhex("01 00 11 01 0000afc8 02 0672616e6765 030001 00 00"))
    assert decode(ConsumerGroupMemberMetadataValue, 0, data) == (made, len(data))


def test_absence_is_not_null():
    made = ConsumerGroupMemberMetadataValue(
        instance_id=None, rack_id=None, subscribed_topic_regex=None, server_assignor=None
    )
    data = encode(made, 0)
    assert data.endswith(b"\0")
    assert decode(ConsumerGroupMemberMetadataValue, 0, data)[0].classic_member_metadata == ClassicMemberMetadata()
