"""The runtime with a toy shard: replies wait for the commit, timers fire, failures reload, leadership moves."""

import asyncio

import pytest

from klamm.coordinator import CoordinatorRecord, Decision, LoggedEvent
from klamm.coordinator.core.deadlines import Deadlines
from klamm.coordinator.runtime import coordinator_runtime
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE, MetadataImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import metadata_records
from klamm.records.batch import BatchView, build_batch
from klamm.telemetry.log import configure

from .runtime_harness import RuntimeHarness, code

pytestmark = pytest.mark.asyncio


async def test_a_reply_leaves_when_its_records_are_committed():
    harness = RuntimeHarness()
    await harness.load()
    answers = harness.put("a", "1")
    assert answers == []
    seen = harness.get("a")
    assert seen == [], "an answer must not show what could still be lost"
    harness.logs[0].commit()
    assert (answers, seen) == (["1"], [b"1"])
    assert harness.get("a") == [b"1"]
    harness.runtime.stop()


async def test_requests_before_during_and_after_loading():
    harness = RuntimeHarness()
    assert code(harness.get("a")) is ErrorCode.NOT_COORDINATOR
    harness.runtime.load(0, 1)
    assert code(harness.get("a")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert harness.runtime.loading
    await harness.load()
    assert harness.get("a") == [None]
    harness.runtime.unload(0)
    assert code(harness.get("a")) is ErrorCode.NOT_COORDINATOR
    with pytest.raises(KlammError):
        harness.runtime.shard(0)


async def test_loading_replays_everything_and_markers_too():
    harness = RuntimeHarness()
    await harness.load()
    for i in range(20):
        harness.put("a", str(i))
    transactional = Decision(records=(CoordinatorRecord(b"t", b"in"),), producer_id=9, producer_epoch=0)
    harness.submit(lambda _shard, _reply_to: transactional)
    done: list = []
    harness.runtime.end_transaction(0, 9, 0, committed=True, coordinator_epoch=3, reply_to=done.append)
    assert done == []
    harness.logs[0].commit()
    assert done == [None]
    await harness.load(epoch=2)
    shard = harness.runtime.shard(0)
    assert shard.values == {b"a": b"19", b"t": b"in"}
    assert shard.loaded == 1
    harness.runtime.stop()


async def test_an_old_epoch_does_not_load_again():
    harness = RuntimeHarness()
    await harness.load(epoch=5)
    shard = harness.runtime.shard(0)
    await harness.load(epoch=5)
    await harness.load(epoch=4)
    assert harness.runtime.shard(0) is shard
    await harness.load(epoch=6)
    assert harness.runtime.shard(0) is not shard
    harness.runtime.stop()


async def test_a_failed_write_fails_its_replies_and_forgets_what_it_said():
    harness = RuntimeHarness()
    await harness.load()
    harness.put("a", "1")
    harness.logs[0].commit()
    lost, after = harness.put("a", "2"), harness.get("a")
    harness.logs[0].fail(ErrorCode.KAFKA_STORAGE_ERROR)
    assert code(lost) is code(after) is ErrorCode.NOT_COORDINATOR
    await harness.loaded()
    assert harness.get("a") == [b"1"]
    harness.runtime.stop()


async def test_a_refused_append_is_told_and_changes_nothing():
    harness = RuntimeHarness()
    await harness.load()
    harness.logs[0].refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert code(harness.put("a", "1")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.logs[0].refuse = None
    await harness.loaded()
    assert harness.get("a") == [None]
    harness.runtime.stop()


async def test_a_bug_in_a_decision_or_a_replay_does_not_stop_the_shard():
    harness = RuntimeHarness()
    await harness.load()

    def broken(_shard, _reply_to):
        raise ZeroDivisionError

    assert code(harness.submit(broken)) is ErrorCode.UNKNOWN_SERVER_ERROR
    answers = harness.submit(lambda _, reply_to: Decision((CoordinatorRecord(b"bad", b""),), ((reply_to, "never"),)))
    assert code(answers) is ErrorCode.UNKNOWN_SERVER_ERROR
    harness.logs[0].batches.clear()
    harness.logs[0].commit()
    await harness.load(epoch=2)
    assert harness.get("a") == [None]
    harness.runtime.stop()


def image_with_leader_epoch(epoch: int) -> MetadataImage:
    topic_id = bytes(15) + b"\x01"
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay(metadata_records.TopicRecord(name="__things", topic_id=topic_id))
    delta.replay(
        metadata_records.PartitionRecord(
            partition_id=0, topic_id=topic_id, replicas=[1, 2], isr=[1, 2], leader=2, leader_epoch=epoch
        )
    )
    return delta.apply(1, 1)


@pytest.mark.parametrize(
    ("image", "level"),
    [
        (image_with_leader_epoch(1), "ERROR"),
        (image_with_leader_epoch(2), "INFO"),
        (EMPTY_IMAGE, "INFO"),
    ],
    ids=["still led here", "led elsewhere", "topic deleted"],
)
async def test_a_log_that_is_not_found_is_an_error_only_while_this_node_leads(capsys, image, level):
    configure()  # tests that ran before may have left another level
    harness = RuntimeHarness()
    await harness.load()
    lost = harness.put("a", "1")
    partition_log = harness.logs.pop(0)
    # As when leadership moves: the image comes first, then the replica fails what waits for its commit.
    harness.runtime.on_metadata(MetadataDelta(image), image)
    partition_log.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert code(lost) is ErrorCode.NOT_COORDINATOR
    await harness.loaded()
    lines = [line for line in capsys.readouterr().err.splitlines() if "coordinator not loaded" in line]
    assert len(lines) == 1
    assert level in lines[0]
    harness.runtime.stop()


async def test_whoever_waits_hears_when_the_partition_moves():
    harness = RuntimeHarness()
    await harness.load()
    parked = harness.submit(lambda shard, reply_to: shard.park(reply_to))
    written = harness.put("a", "1")
    harness.runtime.unload(0)
    assert code(parked) is code(written) is ErrorCode.NOT_COORDINATOR
    harness.logs[0].commit()
    assert len(written) == 1


async def test_a_slow_write_is_told_to_those_who_wait_and_may_still_succeed():
    harness = RuntimeHarness()
    await harness.load()
    answers = harness.put("a", "1")
    harness.clock.advance(60)
    await asyncio.sleep(0.08)
    assert code(answers) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    seen = harness.get("a")
    harness.logs[0].commit()
    assert (len(answers), seen) == (1, [b"1"])
    harness.runtime.stop()


async def test_decisions_of_one_turn_are_one_batch():
    harness = RuntimeHarness()
    await harness.load()
    answers = [harness.put(f"k{i}", str(i)) for i in range(10)]
    seen = harness.get("k9")
    assert harness.runtime.shard(0).values[b"k9"] == b"9", "the next decision sees what was decided before"
    harness.logs[0].end_turn()
    assert [BatchView(batch).record_count for batch in harness.logs[0].batches] == [10]
    assert seen == []
    harness.logs[0].commit()
    assert answers == [[str(i)] for i in range(10)]
    assert seen == [b"9"]
    await harness.load(epoch=2)
    assert len(harness.runtime.shard(0).values) == 10
    harness.runtime.stop()


async def test_a_batch_that_gathers_ends_where_the_log_or_a_transaction_says():
    harness = RuntimeHarness()
    await harness.load()
    harness.logs[0].batch_bytes_max = 200
    for i in range(10):
        harness.put(f"k{i}", "v" * 20)
    harness.submit(lambda *_: Decision(records=(CoordinatorRecord(b"t", b"in"),), producer_id=9, producer_epoch=0))
    harness.put("last", "one")
    harness.logs[0].commit()
    batches = [BatchView(batch) for batch in harness.logs[0].batches]
    assert [(b.record_count, b.is_transactional) for b in batches] == [
        *[(3, False)] * 3,
        (1, False),
        (1, True),
        (1, False),
    ]
    assert all(batch.size <= 200 for batch in batches)
    assert [batch.base_offset for batch in batches] == [0, 3, 6, 9, 10, 11]
    harness.runtime.stop()


@pytest.mark.parametrize("size", [1, 100_000], ids=["in the batch of the turn", "in a batch of its own"])
async def test_an_event_is_logged_once_its_records_are_appended(capsys, size):
    configure()  # tests that ran before may have left another level
    harness = RuntimeHarness()
    await harness.load()

    def store(shard, reply_to):
        decision = shard.put("a", "1" * size, reply_to)
        return decision._replace(events=(LoggedEvent("rebalance completed", {}),))

    harness.logs[0].refuse = ErrorCode.KAFKA_STORAGE_ERROR if size > 1 else None
    refused = harness.submit(store)
    harness.logs[0].refuse = ErrorCode.KAFKA_STORAGE_ERROR
    harness.logs[0].end_turn()
    assert code(refused) is ErrorCode.NOT_COORDINATOR
    assert "rebalance completed" not in capsys.readouterr().err, "the decision is lost"
    harness.logs[0].refuse = None
    await harness.loaded()
    harness.submit(store)
    harness.logs[0].end_turn()
    assert capsys.readouterr().err.count("rebalance completed") == 1
    harness.runtime.stop()


async def test_a_batch_that_is_refused_when_the_turn_ends_fails_all_its_decisions():
    harness = RuntimeHarness()
    await harness.load()
    first, second, seen = harness.put("a", "1"), harness.put("b", "2"), harness.get("a")
    harness.logs[0].refuse = ErrorCode.KAFKA_STORAGE_ERROR
    harness.logs[0].end_turn()
    assert code(first) is code(second) is code(seen) is ErrorCode.NOT_COORDINATOR
    harness.logs[0].refuse = None
    await harness.loaded()
    assert harness.get("a") == [None]
    harness.runtime.stop()


async def test_another_writer_between_decision_and_append_reloads_the_shard():
    harness = RuntimeHarness()
    await harness.load()
    lost = harness.put("a", "1")
    harness.logs[0].append(build_batch([(0, b"foreign", b"x", ())]))
    harness.logs[0].end_turn()
    assert code(lost) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await harness.loaded()
    assert harness.runtime.shard(0).values == {b"foreign": b"x", b"a": b"1"}, "what the log says counts"
    harness.runtime.stop()


async def test_many_records_that_need_not_be_atomic_become_several_batches():
    harness = RuntimeHarness()
    await harness.load()
    records = tuple(CoordinatorRecord(str(i).encode(), b"x" * 1000) for i in range(1000))
    answers = harness.submit(lambda _, reply_to: Decision(records, ((reply_to, "all"),), atomic=False))
    assert len(harness.logs[0].batches) > 1
    harness.logs[0].commit()
    assert answers == ["all"]
    assert len(harness.runtime.shard(0).values) == 1000
    harness.runtime.stop()


async def test_timers_fire_once_and_metadata_reaches_every_shard():
    harness = RuntimeHarness()
    await harness.load()
    shard = harness.runtime.shard(0)
    harness.submit(lambda _, reply_to: Decision(timers=(("soon", harness.clock.monotonic_ms()),)))
    await asyncio.sleep(0.01)
    assert shard.fired == ["soon"]
    harness.runtime.on_metadata(MetadataDelta(EMPTY_IMAGE), EMPTY_IMAGE)
    assert shard.images == 1
    harness.runtime.stop()


async def test_asking_returns_or_raises():
    harness = RuntimeHarness()
    await harness.load()
    task = asyncio.ensure_future(
        harness.runtime.submit_and_wait(0, lambda shard, _, reply_to: shard.put("k", "v", reply_to))
    )
    await asyncio.sleep(0)
    harness.logs[0].commit()
    assert await task == "v"
    with pytest.raises(KlammError, match="not served"):
        await harness.runtime.submit_and_wait(1, lambda shard, _, reply_to: shard.get("k", reply_to))
    harness.runtime.stop()


async def test_keys_go_where_kafka_puts_them():
    harness = RuntimeHarness()
    harness.runtime.partitions = 50
    # Computed with Java: Math.abs("...".hashCode()) % 50, and 0 for Integer.MIN_VALUE.
    expected = {"": 0, "g": 3, "my-group": 12, "polygenelubricants": 0, "gruppe-ä": 48, "group-😀": 7}
    assert {key: harness.runtime.partition_for(key) for key in expected} == expected
    harness.runtime.partitions = 0
    with pytest.raises(KlammError):
        harness.runtime.partition_for("g")


async def test_a_partition_that_cannot_be_read_is_tried_again(monkeypatch):
    monkeypatch.setattr(coordinator_runtime, "RETRY_LOAD_S", 0.01)
    harness = RuntimeHarness()
    await harness.load()
    harness.put("a", "1")
    harness.logs[0].commit()
    good = harness.logs[0].batches[0]
    harness.logs[0].batches[0] = good[:-1] + bytes([good[-1] ^ 1])
    await harness.load(epoch=2)
    assert code(harness.get("a")) is ErrorCode.NOT_COORDINATOR
    harness.logs[0].batches[0] = good
    await asyncio.sleep(0.03)
    assert harness.get("a") == [b"1"]
    harness.runtime.stop()


async def test_deadlines_move_and_are_cancelled():
    deadlines = Deadlines()
    for i in range(100):
        deadlines.set(i, 1000 + i)
    deadlines.set(0, 5000)
    deadlines.set(1, 500)
    for i in range(50, 100):
        deadlines.set(i, None)
    assert deadlines.due(499) == []
    assert deadlines.due(500) == [1]
    assert deadlines.due(2000) == list(range(2, 50))
    assert deadlines.next_ms is not None
    assert deadlines.next_ms <= 5000
    assert deadlines.due(4999) == []
    assert deadlines.due(5000) == [0]
    assert len(deadlines) == 0
