"""The replica manager on real logs: a turn is written together, and a disk that fails fails only its own."""

import asyncio
import errno
import os

import pytest

from klamm.metadata.image import MetadataImage, PartitionImage, TopicImage, TopicsImage
from klamm.model.clock import ManualClock
from klamm.model.errors import ErrorCode, KlammError
from klamm.records.batch import build_batch
from klamm.replication import ReplicaManager
from klamm.replication.core.acknowledgements import NEVER_MS
from klamm.replication.delayed_fetch import DelayedFetch
from klamm.replication.manager import DISK_FULL_RETRY_MS
from klamm.replication.settings import TopicSettings
from klamm.storage import Disk, LogManager, StorageConfig

ME = 1


class FullDisk(Disk):
    """A disk that is full for files whose path contains `full`."""

    def __init__(self) -> None:
        self.full = ""

    def pwritev(self, fd, buffers, position, *args):
        if self.full and self.full in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "no space left on device")
        return os.pwritev(fd, buffers, position, *args)

    def write_file(self, path, data, *, sync=False):
        if self.full and self.full in path:
            raise OSError(errno.ENOSPC, "no space left on device")
        super().write_file(path, data, sync=sync)


class Reply:
    """A pending reply that notes its answer."""

    def __init__(self, base_offset, required_offset, deadline_ms=NEVER_MS) -> None:
        self.base_offset = base_offset
        self.required_offset = required_offset
        self.deadline_ms = deadline_ms
        self.answers = []

    @property
    def error(self):
        return self.answers[0]

    def succeed(self) -> None:
        self.answers.append(ErrorCode.NONE)

    def fail(self, error, message=None) -> None:
        self.answers.append(error)


class Node:
    """A manager, its disk and what most tests do with them."""

    def __init__(self, folder) -> None:
        self.disk = FullDisk()
        self.clock = clock = ManualClock()
        self.logs = LogManager(StorageConfig(log_dirs=(str(folder),)), clock=clock, disk=self.disk)
        self.logs.start("a0xbFTQNQ6y3oXwBz9Rwdw", ME, format_empty=True)
        self.manager = ReplicaManager(ME, self.logs, clock, schedule_write=self._schedule)
        self.scheduled = 0
        self.topics: dict[str, TopicImage] = {}

    def _schedule(self) -> None:
        self.scheduled += 1

    def lead(self, name, *, partitions=1, replicas=(ME,), isr=(ME,), leader=ME, epoch=0, topic_id=None, settings=None):
        topic_id = topic_id or name.encode().ljust(16, b"\0")
        made = {
            index: PartitionImage(
                replicas=replicas, isr=isr, leader=leader, leader_epoch=epoch, partition_epoch=epoch,
                directories=(bytes(16),) * len(replicas),
            )
            for index in range(partitions)
        }  # fmt: skip
        self.topics[name] = TopicImage(name, topic_id, made)
        self.apply({name: self.topics[name]}, {}, settings)
        return self.manager.find(name, 0)

    def apply(self, changed, deleted, settings=None):
        topics = TopicsImage(dict(self.topics), {t.id: t for t in self.topics.values()})
        image = MetadataImage(topics=topics)
        asyncio.run(self.manager.apply(image, changed, deleted, lambda _: settings or TopicSettings()))

    def stage(self, replica, *values, acks_all=False, **options):
        """Stage as the general path of Produce does; returns the pending reply and its answers."""
        records = memoryview(build_batch([(1, None, value, ()) for value in values], **options))
        base = self.manager.append(replica, records, acks_all)
        reply = Reply(base, replica.log.next_offset)
        self.manager.acknowledge(replica, reply, acks_all=acks_all)
        return reply, reply.answers

    def values(self, replica):
        values, offset = [], replica.log.log_start_offset
        from klamm.records.batch import iter_batches

        while offset < replica.log.high_watermark:
            piece = replica.log.read(offset, 1 << 20, replica.log.high_watermark)
            for view in iter_batches(piece.read()):
                values += [row.value for row in view.decode()]
                offset = view.next_offset
        return values


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.disk.full = ""
    made.logs.close()


def test_nothing_is_told_before_the_turn_commits(node):
    replica = node.lead("a")
    pending, answers = node.stage(replica, b"x", b"y")
    assert (pending.base_offset, answers, replica.log.high_watermark, node.scheduled) == (0, [], 0, 1)
    node.manager.write_staged()
    assert (answers, replica.log.high_watermark, node.values(replica)) == ([ErrorCode.NONE], 2, [b"x", b"y"])


def test_many_appends_of_a_turn_are_written_once(node):
    replica = node.lead("a")
    writes = []
    write = replica.log.appender.pwritev
    replica.log.appender.pwritev = lambda *args: (writes.append(len(args[1])), write(*args))[1]
    answers = [node.stage(replica, b"%d" % number)[1] for number in range(10)]
    node.manager.write_staged()
    assert writes == [10]
    assert node.scheduled == 1
    assert answers == [[ErrorCode.NONE]] * 10
    assert node.values(replica) == [b"%d" % number for number in range(10)]


def test_a_refused_batch_leaves_nothing_to_commit(node):
    replica = node.lead("a")
    broken = build_batch([(1, None, b"x", ())])
    broken[20] ^= 1
    with pytest.raises(KlammError):
        node.manager.append(replica, memoryview(broken), False)
    assert (node.scheduled, replica.has_staged, replica.log.next_offset) == (0, False, 0)


def test_a_full_disk_fails_exactly_what_it_carried(node):
    good, bad = node.lead("good"), node.lead("bad")
    node.stage(bad, b"before")
    node.manager.write_staged()
    node.disk.full = "/bad-0/"
    fine, fine_replies = node.stage(good, b"x")
    lost = [node.stage(bad, b"lost-%d" % number) for number in range(3)]
    node.manager.write_staged()
    assert (fine.error, fine_replies) == (ErrorCode.NONE, [ErrorCode.NONE])
    assert [answers for _, answers in lost] == [[ErrorCode.KAFKA_STORAGE_ERROR]] * 3
    assert (bad.log.log_end_offset, bad.log.high_watermark, bad.log.next_offset) == (1, 1, 1)
    node.disk.full = ""
    again, _ = node.stage(bad, b"after")
    node.manager.write_staged()
    assert (again.error, again.base_offset) == (ErrorCode.NONE, 1)
    assert node.values(bad) == [b"before", b"after"]
    assert node.values(good) == [b"x"]


def test_a_failed_write_is_forgotten_by_producer_state(node):
    replica = node.lead("a")
    identity = {"producer_id": 5, "producer_epoch": 0}
    node.stage(replica, b"0", base_sequence=0, **identity)
    node.manager.write_staged()
    node.disk.full = "/a-0/"
    lost, _ = node.stage(replica, b"1", base_sequence=1, **identity)
    retry, _ = node.stage(replica, b"1", base_sequence=1, **identity)  # a duplicate of what is lost is lost as well
    node.manager.write_staged()
    assert (lost.error, retry.error) == (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR)
    node.disk.full = ""
    with pytest.raises(KlammError):
        node.stage(replica, b"2", base_sequence=2, **identity)
    again, _ = node.stage(replica, b"1", base_sequence=1, **identity)
    node.manager.write_staged()
    assert (again.error, again.base_offset) == (ErrorCode.NONE, 1)
    assert node.values(replica) == [b"0", b"1"]


def test_a_duplicate_of_what_is_written_does_not_fail_with_the_write_behind_it(node):
    replica = node.lead("a")
    identity = {"producer_id": 5, "producer_epoch": 0}
    node.stage(replica, b"0", base_sequence=0, **identity)
    node.manager.write_staged()
    node.disk.full = "/a-0/"
    again, _ = node.stage(replica, b"0", base_sequence=0, **identity)
    lost, _ = node.stage(replica, b"1", base_sequence=1, **identity)
    node.manager.write_staged()
    assert (again.answers, lost.answers) == ([ErrorCode.NONE], [ErrorCode.KAFKA_STORAGE_ERROR])


def test_acks_all_is_refused_below_min_insync_replicas(node):
    settings = TopicSettings(min_insync_replicas=2)
    replica = node.lead("a", replicas=(1, 2), isr=(1,), settings=settings)
    with pytest.raises(KlammError) as refused:
        node.stage(replica, b"x", acks_all=True)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    _, answers = node.stage(replica, b"x")
    node.manager.write_staged()
    assert answers == [ErrorCode.NONE]


def test_too_few_in_sync_after_the_append_is_told(node):
    settings = TopicSettings(min_insync_replicas=2)
    replica = node.lead("a", replicas=(1, 2), isr=(1, 2), settings=settings)
    _, answers = node.stage(replica, b"x", acks_all=True)
    node.manager.write_staged()
    assert answers == []
    node.lead("a", replicas=(1, 2), isr=(1,), epoch=1, settings=settings)
    assert answers == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]


def test_a_reply_expires_at_its_deadline(node):
    replica = node.lead("a", replicas=(1, 2), isr=(1, 2))
    records = memoryview(build_batch([(1, None, b"x", ())]))
    base = node.manager.append(replica, records, True)
    reply = Reply(base, replica.log.next_offset, node.manager.now_ms() + 1000)
    node.manager.acknowledge(replica, reply, acks_all=True)
    node.manager.write_staged()
    node.clock.advance(999)
    node.manager.tick()
    assert reply.answers == []
    node.clock.advance(1)
    node.manager.tick()
    assert reply.answers == [ErrorCode.REQUEST_TIMED_OUT]
    assert not replica.acknowledgements


def test_acks_all_waits_for_the_others(node):
    replica = node.lead("a", replicas=(1, 2), isr=(1, 2))
    assert not replica.commits_alone
    one, one_replies = node.stage(replica, b"x")
    every, every_replies = node.stage(replica, b"y", acks_all=True)
    node.manager.write_staged()
    assert (one_replies, every_replies, replica.log.high_watermark) == ([ErrorCode.NONE], [], 0)
    replica.advance_high_watermark(replica.state.on_follower_fetch(2, 1, 2, 0))
    assert (every_replies, replica.log.high_watermark) == ([], 1)
    replica.advance_high_watermark(replica.state.on_follower_fetch(2, 2, 2, 0))
    assert (every_replies, every.error, one.error) == ([ErrorCode.NONE], ErrorCode.NONE, ErrorCode.NONE)


def test_losing_leadership_fails_who_waits(node):
    replica = node.lead("a", replicas=(1, 2), isr=(1, 2))
    _, answers = node.stage(replica, b"x", acks_all=True)
    node.manager.write_staged()
    node.lead("a", replicas=(1, 2), isr=(2,), leader=2, epoch=1)
    assert not replica.leads
    assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_readers_who_wait_are_woken_once_per_turn(node):
    first, second = node.lead("a"), node.lead("b")
    looked = []
    delayed_fetch = DelayedFetch(looked.append, [first, second])
    first.delayed_fetches[delayed_fetch] = None
    second.delayed_fetches[delayed_fetch] = None
    node.stage(first, b"x")
    node.stage(second, b"y")
    node.manager.write_staged()
    assert looked == [False]


def test_a_deleted_topic_ends_every_wait(node):
    replica = node.lead("a", replicas=(1, 2), isr=(1, 2))
    looked = []
    delayed_fetch = DelayedFetch(looked.append, [replica])
    replica.delayed_fetches[delayed_fetch] = None
    _, answers = node.stage(replica, b"x", acks_all=True)
    topic = node.topics.pop("a")
    node.apply({}, {topic.id: "a"})
    assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert looked
    assert node.manager.find("a", 0) is None
    assert node.manager.find_by_id(topic.id, 0) is None
    assert list(node.manager) == []


def test_a_topic_made_anew_is_another_one(node):
    replica = node.lead("a")
    node.stage(replica, b"old")
    node.manager.write_staged()
    old_id = replica.topic_id
    new = node.lead("a", topic_id=b"\x09" * 16)
    assert new is not replica
    assert (new.log.log_end_offset, node.manager.find_by_id(old_id, 0)) == (0, None)
    assert not replica.leads
    assert node.manager.find_by_id(b"\x09" * 16, 0) is new


def test_a_replica_that_found_no_room_is_made_when_there_is_some(node):
    node.disk.full = "/b-"
    assert node.lead("a") is not None
    assert node.lead("b", partitions=2) is None
    topic = node.topics["b"]
    assert [node.manager.not_leader_error(topic.id, index) for index in range(2)] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    node.manager.tick()
    assert node.manager.find("b", 0) is None, "there is still none"
    node.disk.full = "/b-1/"
    node.clock.advance(DISK_FULL_RETRY_MS)
    node.manager.tick()
    assert [node.manager.find("b", index) is not None for index in range(2)] == [True, False]
    node.disk.full = ""
    node.manager.tick()
    assert node.manager.find("b", 1) is None, "it looks now and then, not all the time"
    node.clock.advance(DISK_FULL_RETRY_MS)
    node.manager.tick()
    assert node.manager.find("b", 1).leads
    assert not node.manager.offline


def test_a_replica_that_waits_for_room_is_forgotten_with_its_topic(node):
    node.disk.full = "/b-"
    assert node.lead("b") is None
    topic = node.topics.pop("b")
    node.apply({}, {topic.id: "b"})
    node.disk.full = ""
    node.clock.advance(DISK_FULL_RETRY_MS)
    node.manager.tick()
    assert list(node.manager) == []
    assert not node.manager.offline
