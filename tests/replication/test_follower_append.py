"""A follower's log becomes its leader's, whatever both went through before: epochs decide what is cut, nothing else.

Breaks when a follower truncates by its high watermark, when it trusts offsets without epochs, or when a leader forgets
that its own epoch has begun before its first batch.
"""

import contextlib
import shutil
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.metadata.image import PartitionImage
from klamm.model.clock import ManualClock
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.fetch import EpochEndOffset, PartitionData
from klamm.records.batch import build_batch, iter_batches
from klamm.replication import Replica, ReplicaManager
from klamm.replication.follower_append import Applied, apply_fetched_partition, common_end, reset_to_leader
from klamm.replication.follower_sessions import FollowedPartition, FollowerSession
from klamm.server.handlers.data.fetch_follower import _divergence
from klamm.storage import LogConfig, LogManager, StorageConfig

TOPIC_ID = b"t" * 16
MEMBERS = (1, 2, 3)


class Member:
    """One broker's replica of the partition, on a disk of its own."""

    def __init__(self, node_id: int, folder: str) -> None:
        clock = ManualClock()
        self.logs = LogManager(StorageConfig(log_dirs=(folder,)), clock=clock)
        self.logs.start("a0xbFTQNQ6y3oXwBz9Rwdw", node_id, format_empty=True)
        self.manager = ReplicaManager(node_id, self.logs, clock)
        log = self.logs.create("t", 0, TOPIC_ID, LogConfig(segment_bytes=400))
        self.replica = Replica(node_id, "t", TOPIC_ID, 0, log)
        self.node_id = node_id

    @property
    def log(self):
        return self.replica.log

    def follow(self, leader: int, epoch: int) -> None:
        image = PartitionImage(MEMBERS, MEMBERS, leader, epoch, epoch)
        self.replica.state.apply(image, self.log.log_end_offset, 0)
        self.replica.refresh()

    def append(self, value: bytes, count: int = 1) -> None:
        batch = build_batch([(1, None, value, ())] * count)
        self.log.append_as_leader(memoryview(batch), self.replica.leader_epoch, 1)

    def content(self):
        return list(rows(self.log))


def rows(log):
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20, log.log_end_offset)
        for view in iter_batches(piece.read()):
            yield from ((row.offset, view.leader_epoch, row.value) for row in view.decode())
            offset = view.next_offset


def fetch(leader: Member, follower: Member, max_bytes: int = 1 << 20) -> Applied:
    """One fetch, as the handler answers it and the fetcher takes it."""
    followed = FollowedPartition(FollowerSession(1, follower.node_id, 1), (TOPIC_ID, 0))
    log = follower.log
    followed.update(log.log_end_offset, max_bytes, leader.replica.leader_epoch, log.leader_epochs.latest, 0)
    data = PartitionData(partition_index=0, records=b"", high_watermark=leader.log.high_watermark, log_start_offset=0)
    try:
        data.diverging_epoch = _divergence(leader.replica, followed)
        if data.diverging_epoch is None:
            piece = leader.log.read(followed.fetch_offset, max_bytes, leader.log.log_end_offset)
            data.records = memoryview(bytearray(piece.read())) if piece is not None else b""
    except KlammError as error:
        data.error_code = error.code
    return apply_fetched_partition(follower.manager, follower.replica, data)


def catch_up(leader: Member, follower: Member) -> None:
    for _ in range(200):
        applied = fetch(leader, follower)
        if applied is Applied.NOTHING:
            return
        if applied is Applied.OUT_OF_RANGE:
            reset_to_leader(follower.replica, leader.log.log_start_offset, leader.log.log_end_offset)
    raise AssertionError("the follower never arrives")


@contextlib.contextmanager
def three_members():
    folders = [tempfile.mkdtemp() for _ in MEMBERS]
    members = {n: Member(n, folder) for n, folder in zip(MEMBERS, folders, strict=True)}
    try:
        yield members
    finally:
        for member in members.values():
            member.logs.close(clean=False)
        for folder in folders:
            shutil.rmtree(folder)


def elect(members, leader, epoch):
    for member in members.values():
        member.follow(leader, epoch)
    return members[leader]


def test_what_an_old_leader_wrote_alone_is_cut():
    with three_members() as members:
        first = elect(members, 1, 0)
        first.append(b"both")
        catch_up(first, members[2])
        first.append(b"lost")
        second = elect(members, 2, 1)
        second.append(b"kept")
        catch_up(second, members[1])
        assert members[1].content() == second.content() == [(0, 0, b"both"), (1, 1, b"kept")]


def test_a_new_leader_that_has_written_nothing_still_cuts_what_it_lacks():
    with three_members() as members:
        first = elect(members, 1, 0)
        first.append(b"both")
        catch_up(first, members[2])
        first.append(b"lost")
        second = elect(members, 2, 1)
        catch_up(second, members[1])
        assert members[1].content() == [(0, 0, b"both")]


def test_a_high_watermark_that_lags_costs_no_record():
    """The follower has the record but has not heard that it is committed; truncating to its mark would lose it."""
    with three_members() as members:
        first = elect(members, 1, 0)
        first.append(b"committed")
        catch_up(first, members[2])
        assert members[2].log.high_watermark == 0
        second = elect(members, 2, 1)
        catch_up(second, members[1])
        assert second.content() == members[1].content() == [(0, 0, b"committed")]


def test_a_follower_hears_how_far_its_leader_has_committed():
    with three_members() as members:
        leader, follower = elect(members, 1, 0), members[2]
        leader.append(b"x", count=5)
        catch_up(leader, follower)
        leader.log.advance_high_watermark(3)
        fetch(leader, follower)
        assert follower.log.high_watermark == follower.replica.state.high_watermark == 3
        leader.log.advance_high_watermark(2)
        fetch(leader, follower)
        assert follower.log.high_watermark == 3, "it never goes back while it follows"


def test_a_leader_that_begins_later_is_followed_from_there():
    with three_members() as members:
        leader, follower = elect(members, 1, 0), members[2]
        for number in range(30):
            leader.append(b"%d" % number)
        leader.log.advance_high_watermark(30)
        leader.log.delete_records(20)
        follower.follow(1, 0)
        reset_to_leader(follower.replica, 20, 30)
        assert (follower.log.log_start_offset, follower.log.log_end_offset) == (20, 20)
        catch_up(leader, follower)
        assert follower.content() == leader.content()


@pytest.mark.parametrize(
    ("code", "applied"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Applied.FAILED),
        (ErrorCode.FENCED_LEADER_EPOCH, Applied.FAILED),
        (ErrorCode.OFFSET_OUT_OF_RANGE, Applied.OUT_OF_RANGE),
        (ErrorCode.KAFKA_STORAGE_ERROR, Applied.FAILED),
    ],
)
def test_refusals(code, applied):
    with three_members() as members:
        elect(members, 1, 0)
        data = PartitionData(partition_index=0, error_code=code, records=b"", high_watermark=-1)
        assert apply_fetched_partition(members[2].manager, members[2].replica, data) is applied


def test_a_damaged_batch_is_not_appended():
    with three_members() as members:
        leader, follower = elect(members, 1, 0), members[2]
        leader.append(b"whole")
        data = bytearray(leader.log.read(0, 1000, 1).read())
        data[-1] ^= 1
        part = PartitionData(partition_index=0, records=memoryview(data), high_watermark=1, log_start_offset=0)
        assert apply_fetched_partition(follower.manager, follower.replica, part) is Applied.FAILED
        assert follower.log.log_end_offset == follower.log.high_watermark == 0


def test_where_histories_agree():
    with three_members() as members:
        log = members[1].log
        for epoch in (1, 4):
            elect(members, 1, epoch)
            for _ in range(10):
                members[1].append(b"x")
        assert common_end(log, 4, 15) == 15
        assert common_end(log, 1, 7) == 7
        assert common_end(log, 1, 12) == 10, "our own epoch 1 ended at 10"
        assert common_end(log, 3, 12) == 10, "we never had epoch 3, so nothing after epoch 1 is common"


def test_a_divergence_without_a_place_is_no_divergence():
    with three_members() as members:
        elect(members, 1, 0)
        members[1].append(b"x")
        catch_up(members[1], members[2])
        data = PartitionData(partition_index=0, records=b"", high_watermark=1, diverging_epoch=EpochEndOffset())
        assert apply_fetched_partition(members[2].manager, members[2].replica, data) is Applied.NOTHING
        assert members[2].log.log_end_offset == 1


HISTORY = st.lists(
    st.tuples(
        st.sampled_from(MEMBERS),
        st.integers(1, 3),
        st.lists(st.integers(1, 3), max_size=4),
        st.lists(st.tuples(st.sampled_from(MEMBERS), st.integers(100, 600)), max_size=6),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=60)
@given(HISTORY)
def test_any_history_of_leaders_ends_in_one_log(history):
    """Leaders change, in order or not, and followers copy a little of each; all logs end up like the last leader's."""
    with three_members() as members:
        epoch, number = 0, 0
        for chosen, step, appends, fetches in history:
            epoch += step
            leader = elect(members, chosen, epoch)
            for count in appends:
                number += 1
                leader.append(b"%d" % number, count)
            for follower, size in fetches:
                if follower != chosen and fetch(leader, members[follower], size) is Applied.OUT_OF_RANGE:
                    reset_to_leader(members[follower].replica, 0, leader.log.log_end_offset)
        expected = leader.content()
        for member in members.values():
            if member is not leader:
                catch_up(leader, member)
            assert member.content() == expected
            assert [row[0] for row in member.content()] == list(range(len(expected)))
