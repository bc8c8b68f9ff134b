"""The rules of declarations: versions, null, tags, defaults, and what a writer refuses."""

import pytest

from klamm.model.errors import LocalProtocolError, RemoteProtocolError
from klamm.protocol import decode, encode, encode_into
from klamm.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from klamm.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, LeaderIdAndEpoch, PartitionData
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.schema import array, blob, boolean, int8, int32, message, string, struct, uuid, wire


@struct
class Part:
    number: int = wire(int32)
    note: str | None = wire(string, since=1, nullable=2, default=None)


@message(api_key=1000, versions=(0, 4), flexible=3)
class Whole:
    """Every kind of field, so that each rule has a place to be broken."""

    name: str = wire(string)
    flag: bool = wire(boolean)
    old: int = wire(int8, until=1, default=5)
    parts: list[Part] = wire(array(Part))
    numbers: list[int] | None = wire(array(int32), since=1, nullable=2)
    data: bytes = wire(blob, since=1)
    id: bytes = wire(uuid, since=2)
    extra: Part | None = wire(Part, since=2, nullable=0, default=None)
    late: int = wire(int32, since=3, tag=0, default=-1)
    later: list[Part] = wire(array(Part), since=4, tag=1)
    maybe: Part | None = wire(Part, since=3, tag=300, default=None)


def full():
    return Whole(
        name="n",
        flag=True,
        old=1,
        parts=[Part(number=1, note="a"), Part(number=-2, note="")],
        numbers=[1, 2, 3],
        data=b"d",
        id=bytes(range(16)),
        extra=Part(number=4, note="e"),
        late=9,
        later=[Part(number=5, note="l")],
        maybe=Part(number=6, note="m"),
    )


def test_v0_is_laid_out_as_declared():
    data = encode(Whole(name="ab", flag=True, old=7, parts=[Part(number=3)]), 0)
    assert data.hex(" ") == "00 02 61 62 01 07 00 00 00 01 00 00 00 03"


def test_flexible_versions_are_compact_and_end_each_struct_with_its_tags():
    data = encode(Whole(name="ab", parts=[Part(number=3, note="x")], late=1), 3)
    assert data.hex(" ") == ("03 61 62 00 02 00 00 00 03 02 78 00 01 01 " + "00 " * 16 + "ff 01 00 04 00 00 00 01")


@pytest.mark.parametrize("version", range(5))
def test_fields_outside_their_versions_come_back_as_defaults(version):
    message = full()
    read, _ = decode(Whole, version, encode(message, version))
    assert read.old == (1 if version <= 1 else 5)
    assert read.numbers == ([1, 2, 3] if version >= 1 else [])
    assert read.parts[0].note == ("a" if version >= 1 else None)
    assert read.id == (bytes(range(16)) if version >= 2 else bytes(16))
    assert read.late == (9 if version >= 3 else -1)
    assert read.later == ([Part(number=5, note="l")] if version == 4 else [])


def test_defaults_are_never_shared():
    first, _ = decode(Whole, 0, encode(Whole(), 0))
    second, _ = decode(Whole, 0, encode(Whole(), 0))
    first.later.append(Part())
    assert second.later == []
    assert Whole().parts is not Whole().parts


def test_a_message_may_stand_anywhere_in_a_buffer():
    data = encode(full(), 4)
    read, end = decode(Whole, 4, b"before" + data + b"after", 6)
    assert end == 6 + len(data)
    assert encode(read, 4) == data


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))])
def test_any_buffer_reads_the_same(kind):
    data = encode(full(), 4)
    read, _ = decode(Whole, 4, kind(data))
    assert encode(read, 4) == data
    assert type(read.data) is bytes
    assert type(read.id) is bytes


@pytest.mark.parametrize(
    ("version", "field"), [(1, "numbers"), (4, "name"), (4, "parts"), (4, "data"), (4, "flag"), (4, "id")]
)
def test_null_is_refused_where_the_version_has_none(version, field):
    message = full()
    setattr(message, field, None)
    with pytest.raises(LocalProtocolError):
        encode(message, version)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("late", 2**31),
        ("late", "x"),
        ("name", b"bytes"),
        ("name", "x" * 32768),
        ("data", "text"),
        ("parts", [1]),
        ("numbers", [None]),
    ],
)
def test_values_of_the_wrong_kind_are_refused(field, value):
    message = full()
    setattr(message, field, value)
    with pytest.raises(LocalProtocolError):
        encode(message, 4)


@pytest.mark.parametrize("version", [0, 4])
def test_text_of_the_greatest_length_travels(version):
    message = Whole(name="x" * 32767)
    assert decode(Whole, version, encode(message, version))[0] == message
    with pytest.raises(LocalProtocolError):
        encode(Whole(name="x" * 32768), version)


def test_versions_outside_the_declaration_are_refused():
    for version in (-1, 5):
        with pytest.raises(LocalProtocolError, match="versions 0 to 4"):
            encode(full(), version)
        with pytest.raises(LocalProtocolError, match="versions 0 to 4"):
            decode(Whole, version, b"")


@pytest.mark.parametrize("version", [2, 3])
def test_null_where_there_must_be_a_value_names_the_field(version):
    null = b"\xff\xff" if version == 2 else b"\0"
    with pytest.raises(RemoteProtocolError, match=r"Whole\.name must not be null"):
        decode(Whole, version, null + bytes(40))


def test_text_that_is_not_utf8_is_refused():
    with pytest.raises(RemoteProtocolError):
        decode(Whole, 0, b"\0\2\xff\xfe" + bytes(20))


def test_a_count_longer_than_five_bytes_is_refused():
    with pytest.raises(RemoteProtocolError):
        decode(Whole, 3, b"\xff\xff\xff\xff\xff\x01" + bytes(40))


class TestTags:
    def body(self, tags: bytes) -> bytes:
        return encode(Whole(), 4)[:-1] + tags

    def test_unknown_ones_are_skipped(self):
        tags = b"\x03" + b"\x05\x02ab" + b"\x00\x04\0\0\0\x07" + b"\xff\x01\x00"
        read, end = decode(Whole, 4, self.body(tags))
        assert read == Whole(late=7)
        assert end == len(self.body(tags))

    def test_unknown_ones_are_skipped_where_none_is_known(self):
        data = encode(Whole(parts=[Part(number=1)]), 3)
        at = data.index(b"\0\0\0\1\0\0") + 5  # after the note: the struct's empty tags
        read, _ = decode(Whole, 3, data[:at] + b"\x01\x09\x03abc" + data[at + 1 :])
        assert read == Whole(parts=[Part(number=1)])

    @pytest.mark.parametrize("tags", [b"\x01\x00\x05\0\0\0\x07\0", b"\x01\x00\x03\0\0\0\x07"])
    def test_a_value_must_fill_its_size(self, tags):
        with pytest.raises(RemoteProtocolError, match="size"):
            decode(Whole, 4, self.body(tags))

    @pytest.mark.parametrize("tags", [b"\x01", b"\x01\x05", b"\x01\x05\x02a", b"\x02\x05\x00", b"\xff\xff\xff\xff\x07"])
    def test_cut_ones_are_refused(self, tags):
        with pytest.raises(RemoteProtocolError):
            decode(Whole, 4, self.body(tags))

    def test_a_struct_equal_to_its_default_is_left_out(self):
        assert encode(Whole(maybe=Part()), 4) == encode(Whole(), 4)

    def test_ascend_by_number(self):
        data = encode(Whole(late=1, maybe=Part(number=1), later=[Part()]), 4)
        tags = data[data.rindex(b"\x03\x00\x04") :]
        assert tags.startswith(b"\x03\x00\x04\0\0\0\x01\x01")
        assert b"\xac\x02" in tags


class TestRecords:
    def test_are_views_of_the_request(self):
        message = ProduceRequest(
            topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"batch")])]
        )
        buffer = bytearray(encode(message, 9))
        read, _ = decode(ProduceRequest, 9, memoryview(buffer))
        view = read.topic_data[0].partition_data[0].records
        assert view.obj is buffer
        view[0:1] = b"B"
        assert b"Batch" in buffer

    def test_are_handed_on_as_they_are(self):
        class FileSlice:
            def __len__(self):
                return 200

        piece = FileSlice()
        message = FetchResponse(
            responses=[FetchableTopicResponse(topic="t", partitions=[PartitionData(records=piece)])]
        )
        pieces = []
        encode_into(message, 12, pieces)
        assert sum(part is piece for part in pieces) == 1
        at = next(index for index, part in enumerate(pieces) if part is piece)
        joined = b"".join([*pieces[:at], bytes(200), *pieces[at + 1 :]])
        read, end = decode(FetchResponse, 12, joined)
        assert end == len(joined)
        assert read.responses[0].partitions[0].records == bytes(200)
        with pytest.raises(LocalProtocolError):
            encode(message, 12)

    def test_null_batches_and_leaders(self):
        partition = PartitionData(records=None, current_leader=LeaderIdAndEpoch(leader_id=3))
        message = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
        read, _ = decode(FetchResponse, 12, encode(message, 12))
        assert read == message


def test_a_message_prints_its_fields():
    assert "group_id='g'" in repr(HeartbeatRequest(group_id="g"))


def test_an_error_message_is_cut_to_what_a_text_can_hold():
    for sign in ("x", "\U0001f600"):
        whole = DescribedGroup(group_id="g", error_message=f"Group {sign * 32_767} not found.")
        read, _ = decode(DescribeGroupsResponse, 6, encode(DescribeGroupsResponse(groups=[whole]), 6))
        assert read.groups[0].error_message.startswith(f"Group {sign * 8_000}")
        assert read.groups[0].error_message.endswith("...")
