"""Fetch: where a read starts and ends, how long it waits, and what is refused."""

import socket
import time

import pytest

from harness.wire import Wire, batch, rows, unique
from klamm.model.errors import ErrorCode

VERSIONS = range(4, 19)


def ask(topic, offset=0, partition=0, limit=1 << 20, **fields):
    """One partition of a Fetch by topic name."""
    requested = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": limit, **fields}
    return {"topic": topic, "partitions": [requested]}


def fetch(wire, *topics, version=12, **fields):
    fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 25, **fields}
    return wire.call("fetch", version, topics=list(topics), **fields)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_come_back_as_they_were_sent(wire, version):
    topic = wire.create_topic()
    sent = [batch(b"a", b"b"), batch(b"c" * 500, codec=1)]
    for records in sent:
        wire.produce(topic, records)
    part = wire.fetch(topic, 0, version=version)
    assert (part.error_code, part.partition_index, part.high_watermark, part.last_stable_offset) == (0, 0, 3, 3)
    assert [row.value for row in rows(part.records)] == [b"a", b"b", b"c" * 500]
    assert [row.offset for row in rows(part.records)] == [0, 1, 2]
    assert len(part.records) == sum(map(len, sent))
    if version >= 5:
        assert part.log_start_offset == 0
    if version >= 11:
        assert part.preferred_read_replica == -1


@pytest.mark.parametrize("version", [4, 18])
def test_an_offset_inside_a_batch_gives_the_whole_batch(wire, version):
    topic = wire.create_topic()
    wire.produce(topic, batch(b"a"))
    wire.produce(topic, batch(*[b"%d" % n for n in range(10)]))
    part = wire.fetch(topic, 7, version=version)
    assert [row.offset for row in rows(part.records)] == list(range(1, 11))


@pytest.mark.parametrize("limits", [{"partition_max_bytes": 1}, {"max_bytes": 1}, {"partition_max_bytes": 0}])
def test_the_first_batch_comes_however_large(wire, limits):
    topic = wire.create_topic()
    wire.produce(topic, batch(b"x" * 5000))
    wire.produce(topic, batch(b"y" * 5000))
    assert [row.value[:1] for row in rows(wire.fetch(topic, 0, **limits).records)] == [b"x"]
    assert [row.value[:1] for row in rows(wire.fetch(topic, 1, **limits).records)] == [b"y"]


def test_batches_are_never_cut(wire):
    topic = wire.create_topic()
    sizes = []
    for number in range(20):
        records = batch(b"x" * (number * 37))
        sizes.append(len(records))
        wire.produce(topic, records)
    for limit in range(0, sum(sizes) + 200, 211):
        got = rows(wire.fetch(topic, 0, partition_max_bytes=limit).records)
        fitting = max(1, sum(1 for n in range(20) if sum(sizes[: n + 1]) <= limit))
        assert len(got) == fitting


def test_partitions_are_read_in_request_order_until_max_bytes(wire):
    topic = wire.create_topic(partitions=3)
    for partition in range(3):
        wire.produce(topic, batch(b"x" * 1000), partition=partition)
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        requested = [{"partition": p, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for p in order]
        reply = fetch(wire, {"topic": topic, "partitions": requested}, max_bytes=1500)
        got = {p.partition_index: len(rows(p.records)) for p in reply.responses[0].partitions}
        assert got == {order[0]: 1, order[1]: 0, order[2]: 0}
        reply = fetch(wire, {"topic": topic, "partitions": requested}, max_bytes=2500)
        got = {p.partition_index: len(rows(p.records)) for p in reply.responses[0].partitions}
        assert got == {order[0]: 1, order[1]: 1, order[2]: 0}


def test_a_read_at_the_end_waits_for_max_wait(wire):
    topic = wire.create_topic()
    wire.produce(topic, batch(b"a"))
    begun = time.monotonic()
    part = wire.fetch(topic, 1, max_wait=200)
    assert 0.19 <= time.monotonic() - begun < 5
    assert (part.error_code, part.high_watermark, part.records) == (0, 1, b"")


def test_a_read_that_waits_is_woken_by_a_produce(klamm, wire):
    topic = wire.create_topic(partitions=2)
    fields = {"replica_id": -1, "max_wait": 15_000, "min_bytes": 1, "max_bytes": 10_000}
    requested = [ask(topic, 0), ask(topic, 0, partition=1)]
    begun = time.monotonic()
    correlation_id = wire.send("fetch", 11, topics=requested, **fields)
    assert wire.is_silent()
    with Wire(klamm.port) as other:
        other.produce(topic, batch(b"wake"), partition=1)
    reply = wire.receive("fetch", 11, correlation_id)
    assert time.monotonic() - begun < 10
    assert [rows(p.records) != [] for t in reply.responses for p in t.partitions] == [False, True]


def test_min_bytes_gathers(klamm, wire):
    topic = wire.create_topic()
    records = batch(b"x" * 100)
    fields = {"replica_id": -1, "max_wait": 15_000, "min_bytes": 3 * len(records), "max_bytes": 10_000}
    correlation_id = wire.send("fetch", 11, topics=[ask(topic)], **fields)
    with Wire(klamm.port) as other:
        other.produce(topic, records)
        other.produce(topic, records)
        assert wire.is_silent()
        other.produce(topic, records)
    assert len(rows(wire.receive("fetch", 11, correlation_id).responses[0].partitions[0].records)) == 3


def test_an_error_does_not_wait(wire):
    topic = wire.create_topic()
    begun = time.monotonic()
    reply = fetch(wire, ask(topic, 0), ask(topic, 0, partition=9), max_wait=15_000, min_bytes=1000)
    assert time.monotonic() - begun < 10
    assert sorted(int(p.error_code) for t in reply.responses for p in t.partitions) == [0, 3]


def test_a_topic_deleted_under_a_waiting_read_ends_it(klamm, wire):
    topic = wire.create_topic()
    fields = {"replica_id": -1, "max_wait": 15_000, "min_bytes": 1, "max_bytes": 10_000}
    correlation_id = wire.send("fetch", 11, topics=[ask(topic)], **fields)
    assert wire.is_silent()
    with Wire(klamm.port) as other:
        other.call("delete_topics", 5, topic_names=[topic], timeout=5000)
    part = wire.receive("fetch", 11, correlation_id).responses[0].partitions[0]
    assert part.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_client_that_leaves_while_waiting_is_forgotten(klamm, wire):
    topic = wire.create_topic()
    for _ in range(20):
        with Wire(klamm.port) as other:
            other.send("fetch", 11, replica_id=-1, max_wait=600_000, min_bytes=1, max_bytes=10, topics=[ask(topic)])
    wire.produce(topic, batch(b"x"))
    assert wire.values(topic) == [b"x"]


def test_a_client_that_sends_nothing_more_is_answered(klamm, wire):
    """It gets the answers it waits for, in order; Kafka does the same."""
    topic = wire.create_topic()
    limits = {"replica_id": -1, "max_wait": 300, "min_bytes": 1, "max_bytes": 10_000}
    with Wire(klamm.port) as other:
        waiting = other.send("fetch", 11, topics=[ask(topic)], **limits)
        behind = other.send("api_versions", 0)
        other.sock.shutdown(socket.SHUT_WR)
        assert other.receive("fetch", 11, waiting).responses
        assert other.receive("api_versions", 0, behind).api_keys


@pytest.mark.parametrize("version", [4, 12, 18])
def test_offsets_outside_the_log_are_refused(wire, version):
    topic = wire.create_topic()
    for number in range(4):
        wire.produce(topic, batch(b"%d" % number))
    wire.call("delete_records", 2, topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}])
    for offset in (-1, 0, 1, 5, 2**40):
        part = wire.fetch(topic, offset, version=version)
        assert (part.error_code, part.records) == (1, b"")
    part = wire.fetch(topic, 2, version=version)
    assert [row.value for row in rows(part.records)] == [b"2", b"3"]
    assert part.log_start_offset == 2 if version >= 5 else True
    assert wire.fetch(topic, 4, version=version).error_code == 0


@pytest.mark.parametrize("version", [9, 11, 18])
def test_leader_epochs_are_compared(wire, version):
    topic = wire.create_topic()
    wire.produce(topic, batch(b"a"))
    epoch = wire.call("metadata", 9, topics=[{"name": topic}]).topics[0].partitions[0].leader_epoch
    assert wire.fetch(topic, 0, version=version, current_leader_epoch=epoch).error_code == 0
    assert (
        wire.fetch(topic, 0, version=version, current_leader_epoch=epoch + 1).error_code
        == ErrorCode.UNKNOWN_LEADER_EPOCH
    )
    if epoch > 0:
        assert (
            wire.fetch(topic, 0, version=version, current_leader_epoch=epoch - 1).error_code
            == ErrorCode.FENCED_LEADER_EPOCH
        )


def test_a_reader_of_another_history_is_told_where_it_parts(wire):
    topic = wire.create_topic()
    wire.produce(topic, batch(b"a"))
    epoch = wire.call("metadata", 9, topics=[{"name": topic}]).topics[0].partitions[0].leader_epoch
    agreed = wire.fetch(topic, 1, last_fetched_epoch=epoch)
    assert (agreed.error_code, agreed.diverging_epoch.epoch) == (0, -1)
    beyond = wire.fetch(topic, 9, last_fetched_epoch=epoch, max_wait=5000)
    assert (beyond.error_code, beyond.diverging_epoch.epoch, beyond.diverging_epoch.end_offset) == (0, epoch, 1)


def test_an_unknown_topic_is_told_apart_by_name_and_by_id(wire):
    part = fetch(wire, ask("no-such-topic")).responses[0].partitions[0]
    assert (part.error_code, part.high_watermark) == (3, -1)
    for version in (13, 18):
        topics = {**ask("ignored"), "topic_id": b"\x09" * 16}
        [topic] = fetch(wire, topics, version=version).responses
        assert topic.topic_id.bytes == b"\x09" * 16
        assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    known = wire.create_topic()
    missing = {**ask("", partition=7), "topic_id": wire.topic_id(known)}
    assert (
        fetch(wire, missing, version=13).responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_read_committed_names_no_aborted_transaction_where_there_is_none(wire):
    topic = wire.create_topic()
    wire.produce(topic, batch(b"a"))
    committed = wire.fetch(topic, 0, isolation_level=1)
    assert committed.aborted_transactions == ()
    assert [row.value for row in rows(committed.records)] == [b"a"]
    assert wire.fetch(topic, 0).aborted_transactions is None


def test_zstd_topics_are_refused_to_readers_before_v10(wire):
    topic = wire.create_topic(compression_type="zstd")
    wire.produce(topic, batch(b"a" * 100))
    assert wire.fetch(topic, 0, version=9).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert rows(wire.fetch(topic, 0, version=10).records)


def test_a_large_reply_arrives_whole(wire):
    """Far more than a socket's buffer, through sendfile."""
    topic = wire.create_topic()
    for number in range(12):
        wire.produce(topic, batch(bytes([number]) * 900_000))
    part = wire.fetch(topic, 0, partition_max_bytes=1 << 25)
    got = rows(part.records)
    assert [row.value == bytes([n]) * 900_000 for n, row in enumerate(got)] == [True] * 12


def test_the_broker_limits_what_a_client_may_ask_for(wire):
    """fetch.max.bytes is 55 MiB; more than that is not refused, only cut."""
    topic = wire.create_topic()
    wire.produce(topic, batch(b"x"))
    assert wire.fetch(topic, 0, max_bytes=2**31 - 1, partition_max_bytes=2**31 - 1).error_code == 0


# Sessions (KIP-227)


def test_without_a_session_everything_is_named_each_time(wire):
    topic = wire.create_topic()
    for _ in range(2):
        reply = fetch(wire, ask(topic), session_id=0, session_epoch=-1)
        assert (reply.error_code, reply.session_id) == (0, 0)
        assert len(reply.responses) == 1


@pytest.mark.parametrize("version", [7, 12, 18])
def test_a_session_tells_only_what_has_changed(wire, version):
    name = wire.create_topic(partitions=3)
    topic_id = wire.topic_id(name)
    requested = [{"partition": p, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for p in range(3)]
    full = {"topic": name, "topic_id": topic_id, "partitions": requested}
    begun = fetch(wire, full, version=version, session_epoch=0)
    assert begun.error_code == 0
    assert begun.session_id > 0
    assert [p.partition_index for p in begun.responses[0].partitions] == [0, 1, 2]
    session = begun.session_id

    assert fetch(wire, version=version, session_id=session, session_epoch=1).responses == ()

    wire.produce(name, batch(b"a"), partition=1)
    news = fetch(wire, version=version, session_id=session, session_epoch=2)
    assert [p.partition_index for t in news.responses for p in t.partitions] == [1]

    moved = {"topic": name, "topic_id": topic_id, "partitions": [{**requested[1], "fetch_offset": 1}]}
    assert fetch(wire, moved, version=version, session_id=session, session_epoch=3).responses == ()

    wire.produce(name, batch(b"b"), partition=1)
    wire.produce(name, batch(b"c"), partition=2)
    forgotten = [{"topic": name, "topic_id": topic_id, "partitions": [1]}]
    last = fetch(wire, version=version, session_id=session, session_epoch=4, forgotten_topics_data=forgotten)
    assert [p.partition_index for t in last.responses for p in t.partitions] == [2]

    closed = fetch(wire, version=version, session_id=session, session_epoch=-1)
    assert (closed.error_code, closed.session_id) == (0, 0)
    assert (
        fetch(wire, version=version, session_id=session, session_epoch=5).error_code
        == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )


def test_a_session_is_guarded_by_its_epoch(wire):
    topic = wire.create_topic()
    session = fetch(wire, ask(topic), session_epoch=0).session_id
    assert fetch(wire, session_id=session, session_epoch=2).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert fetch(wire, session_id=session, session_epoch=1).error_code == 0
    assert fetch(wire, session_id=session, session_epoch=1).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert fetch(wire, session_id=session, session_epoch=2).error_code == 0
    assert fetch(wire, session_id=session + 1, session_epoch=1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert fetch(wire, session_id=0, session_epoch=1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_does_not_mix_names_and_ids(wire):
    topic = wire.create_topic()
    by_name = fetch(wire, ask(topic), version=12, session_epoch=0).session_id
    assert (
        fetch(wire, version=13, session_id=by_name, session_epoch=1).error_code
        == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    )
    by_id = fetch(wire, {**ask(""), "topic_id": wire.topic_id(topic)}, version=13, session_epoch=0).session_id
    assert (
        fetch(wire, version=12, session_id=by_id, session_epoch=1).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    )


def test_a_new_full_request_replaces_the_session(wire):
    topic = wire.create_topic()
    first = fetch(wire, ask(topic), session_epoch=0).session_id
    second = fetch(wire, ask(topic), session_id=first, session_epoch=0).session_id
    assert second not in (0, first)
    assert fetch(wire, session_id=first, session_epoch=1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_errors_stay_news_in_a_session(wire):
    session = fetch(wire, ask(unique("absent")), session_epoch=0)
    assert session.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    again = fetch(wire, session_id=session.session_id, session_epoch=1)
    assert again.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_busy_partitions_do_not_starve_the_rest_of_a_session(wire):
    topic = wire.create_topic(partitions=3)
    for partition in range(3):
        for _ in range(4):
            wire.produce(topic, batch(b"x" * 1000), partition=partition)
    requested = [{"partition": p, "fetch_offset": 0, "partition_max_bytes": 1200} for p in range(3)]
    reply = fetch(wire, {"topic": topic, "partitions": requested}, session_epoch=0, max_bytes=1200)
    session, served = reply.session_id, []
    for epoch in range(1, 7):
        reply = fetch(wire, session_id=session, session_epoch=epoch, max_bytes=1200)
        served += [p.partition_index for t in reply.responses for p in t.partitions if p.records]
    assert set(served) == {0, 1, 2}


def test_a_session_waits_and_is_woken(klamm, wire):
    topic = wire.create_topic()
    session = fetch(wire, ask(topic), session_epoch=0).session_id
    fields = {"replica_id": -1, "max_wait": 15_000, "min_bytes": 1, "max_bytes": 10_000}
    correlation_id = wire.send("fetch", 12, session_id=session, session_epoch=1, **fields)
    assert wire.is_silent()
    with Wire(klamm.port) as other:
        other.produce(topic, batch(b"wake"))
    reply = wire.receive("fetch", 12, correlation_id)
    assert [row.value for row in rows(reply.responses[0].partitions[0].records)] == [b"wake"]
