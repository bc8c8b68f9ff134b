"""Committed offsets: who may commit, what is kept, what is forgotten, what a transaction holds back."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.coordinator.core.shard import encode_key, encode_value, make_record
from klamm.coordinator.groups import GroupConfig
from klamm.coordinator.groups.offset_requests import OffsetCommit
from klamm.coordinator.groups.offsets import (
    CommittedOffset,
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE
from klamm.model.errors import ErrorCode, KlammError, RemoteProtocolError
from klamm.model.ids import ZERO_UUID
from klamm.protocol.messages.group_records import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from klamm.protocol.messages.metadata_records import PartitionRecord, RemoveTopicRecord, TopicRecord
from klamm.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

from .groups_world import Answer, World

DAY_MS = 24 * 3600 * 1000
SUBSCRIBED = (("range", b"\0\0" + b"\0\0\0\x01" + b"\0\x01t" + b"\0\0\0\0"),)
"""A consumer's words: it reads topic t."""


@pytest.fixture
def world():
    return World()


# Who may commit


def test_a_simple_consumer_commits_without_being_a_member(world):
    assert world.commit(42, metadata="note") is ErrorCode.NONE
    fetched = world.fetched()
    assert (fetched.committed_offset, fetched.metadata, fetched.committed_leader_epoch) == (42, "note", -1)
    assert world.group().state_name == "Empty"
    assert world.group().protocol_type_name == ""
    world.restart()
    assert world.offset() == 42


def test_a_member_commits_in_its_generation_only(world):
    a, _b = world.stable_group(2)
    generation = world.group().generation_id
    assert world.commit(5, a, generation) is ErrorCode.NONE
    assert world.commit(6, a, generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit(6, "x", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit(6) is ErrorCode.UNKNOWN_MEMBER_ID, "the group has members, and this is none"
    assert world.offset() == 5


def test_a_member_of_a_group_nobody_knows(world):
    assert world.commit(1, "x", 3, version=8) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit(1, "x", 3, version=9) is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.shard.groups == {}


def test_commits_while_a_rebalance_gathers_are_taken_and_while_it_assigns_are_not(world):
    a, b = world.stable_group(2)
    generation = world.group().generation_id
    world.join(a)
    assert world.commit(8, b, generation) is ErrorCode.NONE, "it still owns what it owned"
    world.join(b)
    assert world.group().state_name == "CompletingRebalance"
    assert world.commit(9, b, generation) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit(9, b, generation + 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.offset() == 8


def test_a_fenced_member_commits_nothing(world):
    (a,) = world.stable_group(1)
    generation = world.group().generation_id
    world.pass_time(10_000)
    assert world.commit(3, a, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.offset() == -1


def test_a_note_has_a_limit(world):
    assert world.commit(1, metadata="x" * 4096) is ErrorCode.NONE
    assert world.commit(2, metadata="x" * 4097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert world.offset() == 1
    assert world.commit(3, metadata=None) is ErrorCode.NONE
    assert world.fetched().metadata == ""


# Reading


def test_a_group_nobody_knows_has_no_offsets_and_that_is_no_error(world):
    fetched = world.fetched(group_id="none")
    assert (fetched.committed_offset, fetched.error_code, fetched.metadata) == (-1, ErrorCode.NONE, "")


def test_all_offsets_of_a_group(world):
    for topic, partition, offset in (("t", 0, 1), ("t", 1, 2), ("u", 5, 3)):
        world.commit(offset, topic=topic, partition=partition)
    answer = Answer()
    world.run(world.shard.fetch_offsets("g", None, -1, None, answer, require_stable=True))
    offsets = {(t.name, p.partition_index): p.committed_offset for t in answer.topics for p in t.partitions}
    assert offsets == {("t", 0): 1, ("t", 1): 2, ("u", 5): 3}


def test_an_offset_of_an_earlier_topic_of_the_same_name_is_not_this_ones(world):
    old, new = bytes(15) + b"\x01", bytes(15) + b"\x02"
    world.commit(9, topic_id=old)
    assert world.offset(topic_id=old) == 9
    assert world.offset(topic_id=new) == -1
    assert world.offset(topic_id=ZERO_UUID) == 9


# Transactions


def test_an_offset_in_a_transaction_counts_when_the_transaction_does(world):
    world.commit(10)
    assert world.commit_in_transaction(20, producer_id=7) is ErrorCode.NONE
    assert world.offset() == 10
    assert world.fetched(stable=True).error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert world.fetched(stable=True, partition=1).error_code == ErrorCode.NONE
    world.end_transaction(7, committed=True)
    assert world.offset(stable=True) == 20


def test_an_aborted_transaction_moves_nothing(world):
    world.commit(10)
    world.commit_in_transaction(20, producer_id=7)
    world.end_transaction(7, committed=False)
    assert world.offset(stable=True) == 10


@pytest.mark.parametrize("committed", [True, False])
def test_a_restart_changes_nothing_about_an_open_transaction(world, committed):
    world.commit(10)
    world.commit_in_transaction(20, producer_id=7)
    world.restart()
    assert world.fetched(stable=True).error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(7, committed=committed)
    world.restart()
    assert world.offset(stable=True) == (20 if committed else 10)


def test_of_a_plain_commit_and_an_older_one_in_a_transaction_the_later_counts(world):
    world.commit_in_transaction(20, producer_id=7)
    world.commit(30)
    world.end_transaction(7, committed=True)
    assert world.offset() == 30


def test_two_producers_may_have_open_transactions_for_one_group(world):
    world.commit_in_transaction(20, producer_id=7)
    world.commit_in_transaction(21, producer_id=8)
    world.end_transaction(8, committed=True)
    assert world.fetched(stable=True).error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(7, committed=True)
    assert world.offset(stable=True) == 21, "the record of producer 8 is the later one"


def test_a_transactional_commit_is_checked_against_the_generation(world):
    (a,) = world.stable_group(1)
    generation = world.group().generation_id
    assert world.commit_in_transaction(1, 7, member_id=a, generation_id=generation) is ErrorCode.NONE
    assert world.commit_in_transaction(1, 7, member_id=a, generation_id=generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit_in_transaction(1, 7, member_id="x", generation_id=generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit_in_transaction(1, 7) is ErrorCode.NONE, "older clients do not say who they are"
    assert world.commit_in_transaction(1, 7, group_id="none", generation_id=4) is ErrorCode.ILLEGAL_GENERATION


# Forgetting


def test_offsets_outlive_the_last_member_by_their_retention(world):
    (a,) = world.stable_group(1)
    world.commit(5, a, world.group().generation_id)
    world.leave(a)
    world.pass_time(7 * DAY_MS - 1)
    assert world.offset() == 5
    world.pass_time(600_000)
    assert world.offset() == -1
    assert world.shard.groups == {}
    world.restart()
    assert world.shard.groups == {}


def test_the_offsets_of_a_simple_consumer_live_from_their_last_commit(world):
    world.commit(5)
    world.pass_time(6 * DAY_MS)
    world.commit(6, partition=1)
    world.pass_time(DAY_MS + 600_000)
    assert world.offset() == -1
    assert world.offset(partition=1) == 6


def test_offsets_of_topics_a_consumer_reads_never_expire_and_others_do(world):
    (a,) = world.stable_group(1, protocols=SUBSCRIBED, session_ms=1_800_000)
    generation = world.group().generation_id
    world.commit(1, a, generation, topic="t")
    world.commit(2, a, generation, topic="u")
    for _ in range(8 * 48 + 1):
        world.pass_time(1_800_000 - 1)
        assert world.heartbeat(a, generation) is ErrorCode.NONE
    assert world.offset(topic="t") == 1
    assert world.offset(topic="u") == -1


def test_offsets_an_open_transaction_would_move_do_not_expire(world):
    world.commit(1)
    world.commit_in_transaction(2, producer_id=7)
    world.pass_time(9 * DAY_MS)
    assert world.offset() == 1


def test_old_clients_choose_their_own_retention(world):
    world.commit(5, retention_ms=1_000_000)
    world.restart()
    world.pass_time(600_000)
    assert world.offset() == 5
    world.pass_time(600_000)
    assert world.offset() == -1


def test_a_group_that_only_ever_asked_for_an_id_goes_with_the_next_look(world):
    world.join()
    world.pass_time(600_000)
    assert world.shard.groups == {}


def test_the_offsets_of_a_deleted_topic_go_with_it(world):
    old, new = bytes(15) + b"\x01", bytes(15) + b"\x02"
    delta = MetadataDelta(EMPTY_IMAGE)
    for topic_id, name in ((old, "t"), (new, "u")):
        delta.replay(TopicRecord(name=name, topic_id=topic_id))
        delta.replay(PartitionRecord(partition_id=0, topic_id=topic_id, replicas=[1], isr=[1], leader=1))
    image = delta.apply(10, 1)
    world.commit(1, topic="t", topic_id=old)
    world.commit(2, topic="t", partition=1)
    world.commit(3, topic="u", topic_id=new)
    world.commit(4, group_id="h", topic="t", topic_id=new)
    world.commit_in_transaction(5, producer_id=7, topic="t", partition=2)
    gone = MetadataDelta(image)
    gone.replay(RemoveTopicRecord(topic_id=old))
    world.run(world.shard.on_metadata(gone, gone.apply(11, 1), world.now))
    world.end_transaction(7, committed=True)
    assert [world.offset(topic="t", partition=p) for p in range(3)] == [-1, -1, -1]
    assert world.offset(topic="u") == 3
    assert world.offset(group_id="h", topic="t") == 4, "committed for the next topic of that name"


def delete(world, group_id="g", topic="t", *partitions):
    answer = Answer()
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in partitions]
            )
        ],
    )
    world.run(world.shard.delete_offsets(request, answer))
    return [ErrorCode(p.error_code) for p in answer.topics[0].partitions]


def test_single_offsets_can_be_removed_unless_members_read_the_topic(world):
    world.commit(1)
    assert delete(world, "g", "t", 0, 1) == [ErrorCode.NONE, ErrorCode.NONE]
    assert world.offset() == -1
    (a,) = world.stable_group(1, protocols=SUBSCRIBED)
    generation = world.group().generation_id
    world.commit(2, a, generation, topic="t")
    world.commit(3, a, generation, topic="u")
    assert delete(world, "g", "t", 0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert delete(world, "g", "u", 0) == [ErrorCode.NONE]
    assert (world.offset(topic="t"), world.offset(topic="u")) == (2, -1)


def test_what_a_group_reads_is_what_its_last_generation_said(world):
    a, b = world.stable_group(2, protocols=SUBSCRIBED)
    world.commit(2, a, world.group().generation_id)
    world.join(protocols=SUBSCRIBED)
    world.leave(a, b)
    assert world.group().state_name == "PreparingRebalance"
    assert delete(world, "g", "t", 0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


def test_nothing_is_removed_from_a_group_of_connect_workers_in_service(world):
    world.stable_group(1, protocol_type="connect")
    with pytest.raises(Exception, match="NON_EMPTY_GROUP") as refused:
        delete(world, "g", "t", 0)
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    with pytest.raises(Exception, match="GROUP_ID_NOT_FOUND"):
        delete(world, "none", "t", 0)


# Bytes

NAMES = st.text(st.characters(codec="utf-8"), max_size=60)


@given(group=NAMES, topic=NAMES, partition=st.integers(0, 2**31 - 1))
def test_keys_are_written_by_hand_as_they_are_declared(group, topic, partition):
    key = encode_offset_key(group, topic, partition)
    assert key == encode_key(OffsetCommitKey(group=group, topic=topic, partition=partition))
    assert decode_offset_key(key) == (group, topic, partition)


@given(
    offset=st.integers(-1, 2**63 - 1),
    epoch=st.integers(-1, 2**31 - 1),
    metadata=st.text(st.characters(codec="utf-8"), max_size=200),
    timestamp=st.integers(0, 2**62),
    topic_id=st.binary(min_size=16, max_size=16) | st.just(ZERO_UUID),
    version=st.sampled_from([0, 1, 2, 3, 4]),
)
def test_values_are_written_and_read_by_hand_as_they_are_declared(
    offset, epoch, metadata, timestamp, topic_id, version
):
    declared = OffsetCommitValue(
        offset=offset, leader_epoch=epoch, metadata=metadata, commit_timestamp=timestamp, topic_id=topic_id
    )
    committed = CommittedOffset(offset, epoch, metadata, timestamp, -1, topic_id, 5)
    assert encode_offset_value(committed) == encode_value(declared, 4)
    read = decode_offset_value(encode_value(declared, version), b"\0\x01", 5)
    assert read == committed._replace(
        leader_epoch=epoch if version >= 3 else -1, topic_id=topic_id if version >= 4 else ZERO_UUID
    )


def test_records_of_very_old_brokers_are_read(world):
    record = make_record(
        LegacyOffsetCommitKey(group="g", topic="t", partition=3),
        LegacyOffsetCommitValue(offset=12, metadata="m", commit_timestamp=9),
    )
    world.shard.replay(record, 0)
    assert world.offset(partition=3) == 12


@given(st.binary(max_size=80))
def test_bytes_that_are_no_value_are_refused_and_nothing_else(data):
    for read in (lambda: decode_offset_value(data, b"\0\x01", 0), lambda: decode_offset_key(b"\0\x01" + data)):
        with contextlib.suppress(RemoteProtocolError):
            read()


def test_a_smaller_limit_of_notes():
    world = World(GroupConfig(offset_metadata_max_bytes=3))
    assert world.commit(1, metadata="abcd") is ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_a_commit_that_would_not_fit_a_batch_is_refused_whole():
    world = World(GroupConfig(record_bytes_max=4000))
    rows = [(index, 1, -1, "") for index in range(100)]
    commit = OffsetCommit("g", -1, "", None, [("t", ZERO_UUID, rows)])
    with pytest.raises(KlammError) as refused:
        world.shard.commit_offsets(commit, 8, world.now, Answer())
    assert refused.value.code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
