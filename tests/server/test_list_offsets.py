"""ListOffsets: beginnings, ends, and offsets by time."""

import pytest

from harness.wire import NOW_MS, batch
from klamm.model.errors import ErrorCode
from klamm.records.batch import build_batch

VERSIONS = range(1, 12)
SINCE = {-3: 7, -4: 8, -5: 9, -6: 11}


def millis(value):
    """A timestamp as kio gives it, in milliseconds."""
    return -1 if value is None else round(value.timestamp() * 1000) if hasattr(value, "timestamp") else value


@pytest.fixture
def topic(wire):
    """Three batches; within each the times are not in order."""
    name = wire.create_topic()
    for start in (0, 100, 200):
        times = [NOW_MS + start, NOW_MS + start + 50, NOW_MS + start + 10]
        wire.produce(name, bytes(build_batch([(t, None, b"v", ()) for t in times])))
    return name


@pytest.mark.parametrize("version", VERSIONS)
def test_beginning_and_end(wire, topic, version):
    for timestamp, offset in ((-2, 0), (-1, 9)):
        part = wire.list_offset(topic, timestamp, version=version)
        assert (part.error_code, part.offset, millis(part.timestamp)) == (0, offset, -1)
        if version >= 4:
            assert part.leader_epoch >= 0


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("after", "offset", "timestamp"),
    [(-10_000, 0, 0), (0, 0, 0), (1, 1, 50), (10, 1, 50), (50, 1, 50), (51, 3, 100), (150, 4, 150), (201, 7, 250)],
)
def test_by_time_gives_the_first_record_at_or_after(wire, topic, version, after, offset, timestamp):
    part = wire.list_offset(topic, NOW_MS + after, version=version)
    assert (part.error_code, part.offset, millis(part.timestamp)) == (0, offset, NOW_MS + timestamp)


@pytest.mark.parametrize("version", [1, 7, 11])
def test_a_time_after_the_last_record_has_no_offset(wire, topic, version):
    part = wire.list_offset(topic, NOW_MS + 251, version=version)
    assert (part.error_code, part.offset, millis(part.timestamp)) == (0, -1, -1)


@pytest.mark.parametrize("version", range(7, 12))
def test_the_largest_timestamp(wire, topic, version):
    part = wire.list_offset(topic, -3, version=version)
    assert (part.error_code, part.offset, millis(part.timestamp)) == (0, 7, NOW_MS + 250)


@pytest.mark.parametrize("version", [7, 11])
def test_an_empty_log(wire, version):
    name = wire.create_topic()
    for timestamp, offset in ((-1, 0), (-2, 0), (-3, -1), (0, -1), (NOW_MS, -1)):
        part = wire.list_offset(name, timestamp, version=version)
        assert (part.error_code, part.offset, millis(part.timestamp)) == (0, offset, -1)


def test_nothing_is_tiered(wire, topic):
    assert wire.list_offset(topic, -4, version=8).offset == 0
    assert wire.list_offset(topic, -5, version=9).offset == -1
    assert wire.list_offset(topic, -6, version=11).offset == -1


@pytest.mark.parametrize("timestamp", SINCE)
def test_special_timestamps_need_their_version(wire, topic, timestamp):
    for version in VERSIONS:
        part = wire.list_offset(topic, timestamp, version=version)
        assert part.error_code == (ErrorCode.UNSUPPORTED_VERSION if version < SINCE[timestamp] else 0), version


def test_the_beginning_moves_with_deleted_records(wire, topic):
    wire.call("delete_records", 2, topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 4}]}])
    assert wire.list_offset(topic, -2).offset == 4
    assert wire.list_offset(topic, -4, version=8).offset == 4
    assert wire.list_offset(topic, NOW_MS).offset >= 4
    assert wire.end_offset(topic) == 9


@pytest.mark.parametrize("version", [2, 11])
def test_read_committed_ends_at_the_last_stable_offset(wire, topic, version):
    assert wire.list_offset(topic, -1, version=version, isolation_level=1).offset == 9


def test_what_cannot_be_answered(wire, topic):
    assert wire.list_offset("no-such-topic", -1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.list_offset(topic, -1, partition=5).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    epoch = wire.list_offset(topic, -1).leader_epoch
    assert wire.list_offset(topic, -1, current_leader_epoch=epoch).error_code == 0
    assert wire.list_offset(topic, -1, current_leader_epoch=epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_partition_named_twice_is_refused(wire, topic):
    requested = [{"partition_index": 0, "timestamp": -1}, {"partition_index": 0, "timestamp": -2}]
    reply = wire.call("list_offsets", 7, replica_id=-1, topics=[{"name": topic, "partitions": requested}])
    assert {int(p.error_code) for p in reply.topics[0].partitions} == {42}


def test_log_append_time_topics_are_searched_by_the_brokers_time(wire):
    name = wire.create_topic(message_timestamp_type="LogAppendTime")
    stamps = [millis(wire.produce(name, batch(b"x", timestamp=1)).log_append_time) for _ in range(3)]
    part = wire.list_offset(name, stamps[0])
    assert (part.offset, millis(part.timestamp)) == (0, stamps[0])
    assert wire.list_offset(name, stamps[-1] + 1).offset == -1
