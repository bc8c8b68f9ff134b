"""The quick path of Produce and the general path give the same reply to the byte.

A new connection takes the general path; one that has sent such a request before takes the quick path. Two topics with
names of equal length get the same requests, one on each path.
"""

import uuid

import pytest

from harness import NodeThread
from harness.wire import Wire, batch, produce_fields, request_bytes
from klamm.server.handlers.data import produce_quick
from klamm.server.requests import record_checks
from klamm.storage import log_appender

VERSIONS = range(5, 14)
PAD = b"x" * 300


def plain_story():
    return [batch(b"a"), batch(b"b", b"c"), batch(PAD, codec=1), batch(None), batch(*[b"r"] * 200)]


def refused_story():
    bad = bytearray(batch(b"a"))
    bad[20] ^= 1
    return [batch(b"a"), bytes(bad), batch(b"b"), b"", batch(b"a") * 2, batch(b"c", control=True), batch(b"d")]


def idempotent_story(producer_id):
    def numbered(sequence, epoch=0):
        return batch(b"v", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)

    order = [(0,), (1,), (1,), (0,), (3,), (2,), (2,), (5,), (0, 1), (3, 0), (1, 1)]
    return [numbered(*step) for step in order]


def replies(port, topic, topic_id, version, acks, story, *, fresh):
    """Reply frames without the correlation id; the topic's name or id is masked."""
    frames = []
    wire = Wire(port)
    try:
        for number, records in enumerate(story):
            if fresh and number:
                wire.close()
                wire = Wire(port)
            fields = produce_fields(topic, records, acks=acks)
            fields["topic_data"][0]["topic_id"] = topic_id
            wire.send_frame(request_bytes("produce", version, number, "wire", **fields))
            frame = wire.receive_frame()
            assert int.from_bytes(frame[:4], "big") == number
            frames.append(frame[4:].replace(topic.encode(), b"TOPIC").replace(topic_id, b"ID"))
    finally:
        wire.close()
    return frames


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["plain", "refused", "idempotent"])
def test_both_ways_answer_alike(klamm, wire, kind, version, acks):
    stories = {"plain": plain_story, "refused": refused_story}
    producer_id = wire.call("init_producer_id", 4).producer_id
    story = idempotent_story(producer_id) if kind == "idempotent" else stories[kind]()
    outcomes = []
    for fresh in (True, False):
        topic = wire.create_topic(uuid.uuid4().hex)
        frames = replies(klamm.port, topic, wire.topic_id(topic), version, acks, story, fresh=fresh)
        outcomes.append((frames, wire.values(topic)))
    assert outcomes[0] == outcomes[1]


def test_the_quick_path_really_is_taken(tmp_path, monkeypatch):
    """Guard the comparison above against a quick path that is never taken."""
    taken = []
    quick_path = produce_quick.handle

    def counted(*args):
        taken.append(quick_path(*args))
        return taken[-1]

    monkeypatch.setattr(produce_quick, "handle", counted)
    with NodeThread(tmp_path) as node, Wire(node.port) as wire:
        topic = wire.create_topic()
        topic_id = wire.topic_id(topic)
        for version in range(produce_quick.VERSION_MIN, 14):
            for acks in (0, 1, -1):
                taken.clear()
                for _ in range(3):
                    fields = produce_fields(topic, batch(b"x"), acks=acks)
                    fields["topic_data"][0]["topic_id"] = topic_id
                    correlation_id = wire.send("produce", version, **fields)
                    if acks:
                        wire.receive("produce", version, correlation_id)
                    else:
                        wire.call("api_versions", 0)
                assert taken.count(True) == 2, f"v{version} acks={acks}"


def test_small_packed_batches_take_the_quick_path_and_others_a_thread(tmp_path, monkeypatch):
    """And a connection whose batches unpack to much does not try each of them on the loop first."""
    taken, checked, tried = [], [], []
    quick_path, check, look = produce_quick.handle, record_checks.check_batches, log_appender.has_sound_records

    def counted(*args):
        taken.append(quick_path(*args))
        return taken[-1]

    def counted_check(batches):
        checked.append(len(batches))
        return check(batches)

    monkeypatch.setattr(produce_quick, "handle", counted)

    def counted_look(data, *args):
        tried.append(len(data))
        return look(data, *args)

    monkeypatch.setattr(record_checks, "check_batches", counted_check)
    monkeypatch.setattr(log_appender, "has_sound_records", counted_look)
    with NodeThread(tmp_path) as node, Wire(node.port) as wire:
        topic = wire.create_topic()
        assert wire.produce(topic, batch(b"x")).error_code == 0
        for codec in range(1, 5):
            assert wire.produce(topic, batch(PAD, codec=codec)).error_code == 0
        assert (taken[-4:], checked) == ([True] * 4, [])
        roomy = batch(bytes(300_000), codec=4)
        assert len(roomy) < 1000
        for number in range(3):
            assert wire.produce(topic, roomy).error_code == 0
            assert (taken[-1], checked) == (False, [1] * (number + 1))
        assert tried.count(len(roomy)) == 1
        assert wire.produce(topic, batch(b"small", codec=4)).error_code == 0
        assert taken[-1]
