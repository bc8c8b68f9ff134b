"""The short way of a commit, compiled and interpreted, beside the declared way: the same, or left alone."""

import random
import struct

import pytest

from harness import forms
from klamm.coordinator.core.shard import CoordinatorRecord, make_record
from klamm.coordinator.groups import kernels
from klamm.coordinator.groups.offsets import CommittedOffset, ShardOffsets, offset_record, offset_tombstone
from klamm.model.errors import ProtocolError
from klamm.protocol.codec import decode, encode
from klamm.protocol.header import RequestHeader, decode_request_header, encode_request_header
from klamm.protocol.messages.group_records import GroupMetadataKey
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

VERSIONS = range(2, 11)
WALL_MS = 1_700_000_000_000


@pytest.fixture(scope="module", params=["compiled", "interpreted"])
def form(request):
    return getattr(forms, request.param)(kernels)


def text(chance: random.Random, most: int = 12) -> str:
    return "".join(chance.choice("abcdefgh-_.äß€😀") for _ in range(chance.randrange(most)))


def some_request(chance: random.Random, version: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=text(chance),
        generation_id_or_member_epoch=chance.choice([-1, 0, 7, 2**31 - 1, -(2**31)]),
        member_id=text(chance, 40),
        group_instance_id=chance.choice([None, "", text(chance)]) if version >= 7 else None,
        topics=[
            OffsetCommitRequestTopic(
                name=text(chance) if version < 10 else "",
                topic_id=chance.randbytes(16) if version >= 10 else bytes(16),
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=chance.choice([0, 1, 9, 2**31 - 1, -1]),
                        committed_offset=chance.choice([0, 1, 2**40, 2**63 - 1, -1, -(2**63)]),
                        committed_leader_epoch=chance.choice([-1, 0, 5]) if version >= 6 else -1,
                        committed_metadata=chance.choice(
                            [None, "", text(chance), "n" * chance.choice([126, 127, 300])]
                        ),
                    )
                    for _ in range(chance.randrange(4))
                ],
            )
            for _ in range(chance.randrange(3))
        ],
    )


def frame_of(request: OffsetCommitRequest, version: int, client_id: str | None = "client") -> bytes:
    return encode_request_header(RequestHeader(8, version, 99, client_id)) + encode(request, version)


def parts_of(request: OffsetCommitRequest, version: int) -> tuple:
    """What `read_commit` should find."""
    return (
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        [
            (
                topic.name if version < 10 else bytes(topic.topic_id),
                [
                    (p.partition_index, p.committed_offset, p.committed_leader_epoch, p.committed_metadata or "")
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_read_as_the_codec_reads_it(form, version):
    chance = random.Random(version)
    for _ in range(200):
        request = some_request(chance, version)
        frame = frame_of(request, version, chance.choice([None, "", "client"]))
        assert form.read_commit(memoryview(bytearray(frame)), version) == parts_of(request, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_that_do_not_add_up_are_left_to_the_codec(form, version):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(400):
        frame = bytearray(frame_of(some_request(chance, version), version))
        for _ in range(chance.randrange(1, 4)):
            frame[chance.randrange(8, len(frame))] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
        if chance.random() < 0.3:
            del frame[chance.randrange(8, len(frame)) :]
        if chance.random() < 0.1:
            frame += chance.randbytes(3)
        parts = form.read_commit(bytes(frame), version)
        if parts is not None:
            _, start = decode_request_header(frame)
            request, end = decode(OffsetCommitRequest, version, frame, start)
            assert end == len(frame)
            assert parts == parts_of(request, version)


def test_the_unusual_is_left_alone(form):
    request = some_request(random.Random(1), 4)
    request.retention_time_ms = 1000
    assert form.read_commit(frame_of(request, 4), 4) is None
    whole = frame_of(some_request(random.Random(2), 8), 8)
    assert form.read_commit(whole, 8) is not None
    tagged = whole[:-1] + b"\x01\x05\x01x"
    assert decode(OffsetCommitRequest, 8, tagged, decode_request_header(tagged)[1])[1] == len(tagged)
    assert form.read_commit(tagged, 8) is None
    assert form.read_commit(whole + b"\0", 8) is None
    assert form.read_commit(b"", 8) is None
    for version in (0, 1, 11, 99):
        assert form.read_commit(whole, version) is None


def test_both_forms_agree_on_any_bytes():
    fast = forms.compiled(kernels)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, other = random.Random(seed), forms.interpreted(kernels)
    for _ in range(2000):
        data, version = chance.randbytes(chance.randrange(80)), chance.randrange(12)
        assert fast.read_commit(data, version) == other.read_commit(data, version)
        key, value = chance.randbytes(chance.randrange(20)), chance.randbytes(chance.randrange(50))
        value = b"\0\4" + value if chance.random() < 0.8 else value
        stores: list[dict] = [{}, {}]
        places = [{key[:-4]: ("g", store)} for store in stores]
        done = [
            module.replay_offsets(place, [CoordinatorRecord(key, value)], 5, CommittedOffset)
            for module, place in zip((fast, other), places, strict=True)
        ]
        assert done[0] == done[1]
        assert stores[0] == stores[1]


@pytest.mark.parametrize("topic_id", [bytes(16), bytes(range(16))])
def test_records_are_those_of_the_declared_way(form, topic_id):
    notes = ["", "x", "ä€😀", "n" * 125, "n" * 126, "n" * 127, "n" * 4096, "n" * 16382, "n" * 16383]
    rows = [(i, 2**40 + i, i - 1, note) for i, note in enumerate(notes)]
    rows += [(2**31 - 1, 2**63 - 1, 2**31 - 1, ""), (0, -1, -1, "")]
    records: list[CoordinatorRecord] = []
    form.add_records(records, "grüppe", "topic", topic_id, rows, WALL_MS, CoordinatorRecord)
    assert records == [
        offset_record("grüppe", "topic", index, CommittedOffset(offset, epoch, note, WALL_MS, -1, topic_id))
        for index, offset, epoch, note in rows
    ]
    assert all(type(record) is CoordinatorRecord for record in records)


def test_a_run_of_records_counts_as_one_after_the_other(form, monkeypatch):
    monkeypatch.setattr("klamm.coordinator.groups.offsets.kernels", form)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(30):
        quick, slow = ShardOffsets(), ShardOffsets()
        records = []
        for _ in range(chance.randrange(1, 60)):
            place = (chance.choice("gh"), chance.choice("tu"), chance.randrange(3))
            topic_id = chance.choice([bytes(16), b"i" * 16])
            committed = CommittedOffset(
                chance.randrange(9), chance.choice([-1, 3]), chance.choice(["", "ä", "n" * 200]), WALL_MS,
                chance.choice([-1, -1, -1, WALL_MS + 5]), topic_id,
            )  # fmt: skip
            records.append(offset_tombstone(*place) if chance.random() < 0.1 else offset_record(*place, committed))
        at = 0
        while at < len(records):
            at += quick.replay_run(records[at:], 100 + at)
            if at < len(records):
                quick.replay(records[at], 100 + at, -1)
                at += 1
        for offset, record in enumerate(records, 100):
            slow.replay(record, offset, -1)
        assert quick.committed == slow.committed
        assert all(
            type(committed) is CommittedOffset
            for topics in quick.committed.values()
            for partitions in topics.values()
            for committed in partitions.values()
        )
        quick.check()


def test_records_of_other_kinds_and_unreadable_notes_stop_a_run(form):
    known = {offset_record("g", "t", 0, CommittedOffset(1, 1, "", 1)).key[:-4]: ("g", {})}
    good = offset_record("g", "t", 0, CommittedOffset(1, 1, "ab", 1))
    strange = CoordinatorRecord(good.key, good.value.replace(b"ab", b"\xff\xfe"))
    group = make_record(GroupMetadataKey(group="g"), None)
    for stop in (
        strange,
        group,
        CoordinatorRecord(good.key, b""),
        CoordinatorRecord(b"", b""),
        CoordinatorRecord(good.key, None),
    ):
        assert form.replay_offsets(known, [good, stop, good], 0, CommittedOffset) == 1
    assert form.replay_offsets(known, (), 0, CommittedOffset) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_is_that_of_the_codec(form, version):
    chance = random.Random(version)
    for _ in range(50):
        request = some_request(chance, version)
        topics = [
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[OffsetCommitResponsePartition(partition_index=p.partition_index) for p in topic.partitions],
            )
            for topic in request.topics
        ]
        header = struct.pack(">i", -7) + (b"\0" if version >= 8 else b"")
        body = header + encode(OffsetCommitResponse(topics=topics), version)
        assert form.write_answer(-7, version, parts_of(request, version)[4]) == struct.pack(">i", len(body)) + body


def test_hostile_requests_are_refused_by_the_codec_too(form):
    """A count that no bytes stand behind costs nothing and is refused."""
    frame = bytearray(frame_of(OffsetCommitRequest(group_id="g", member_id=""), 7))
    frame[-4:] = b"\x7f\xff\xff\xff"
    assert form.read_commit(bytes(frame), 7) is None
    with pytest.raises(ProtocolError):
        decode(OffsetCommitRequest, 7, frame, decode_request_header(frame)[1])
