"""The runtime with a toy shard: replies wait for the commit, timers fire, failures reload, leadership moves."""

import asyncio
from collections.abc import Hashable
from types import SimpleNamespace

import pytest

from klamm.coordinator import CoordinatorRecord, CoordinatorRuntime, Decision, LoggedEvent, Now, Shard
from klamm.coordinator.core.deadlines import Deadlines
from klamm.coordinator.runtime import coordinator_runtime
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE, MetadataImage
from klamm.model.clock import ManualClock
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import metadata_records
from klamm.records.batch import BatchView, build_batch
from klamm.telemetry.log import configure


class Log:
    """A log that commits when the test calls `commit`."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end_offset = 0
        self.high_watermark = 0
        self.leader_epoch = 1
        self.batch_bytes_max = 1 << 20
        self.under_min_isr = False
        self.refuse: ErrorCode | None = None
        self._waiting: list = []
        self._gathering: list = []

    def append_at_turn_end(self, append) -> int:
        if self.refuse is not None:
            raise KlammError(self.refuse)
        self._gathering.append(append)
        asyncio.get_running_loop().call_soon(self.end_turn)
        return self.end_offset

    def end_turn(self) -> None:
        gathering, self._gathering = self._gathering, []
        for append in gathering:
            append()

    def append(self, batch: bytearray, transaction_version: int = 0) -> int:
        if self.refuse is not None:
            raise KlammError(self.refuse)
        base = self.end_offset
        view = BatchView(batch)
        view.set_offset_and_epoch(base, 1)
        self.batches.append(bytes(batch))
        self.end_offset = view.next_offset
        return base

    def when_committed(self, end_offset, settled) -> None:
        if end_offset <= self.high_watermark:
            settled(ErrorCode.NONE)
        else:
            self._waiting.append((end_offset, settled))

    def commit(self) -> None:
        self.end_turn()
        self.high_watermark = self.end_offset
        waiting, self._waiting = self._waiting, []
        for _, settled in waiting:
            settled(ErrorCode.NONE)

    def fail(self, error: ErrorCode) -> None:
        """The last batch could not be written."""
        self.end_turn()
        self.batches.pop()
        self.end_offset = self.high_watermark
        waiting, self._waiting = self._waiting, []
        for _, settled in waiting:
            settled(error)

    def read(self, offset: int) -> bytes:
        return b"".join(b for b in self.batches if BatchView(b).next_offset > offset)


class Counter(Shard):
    """Keeps texts by key; what a shard is, and no more."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.pending: dict[int, list[CoordinatorRecord]] = {}
        self.parked: list = []
        self.fired: list[Hashable] = []
        self.images = 0
        self.loaded = 0

    def replay(
        self, record: CoordinatorRecord, offset: int = -1, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        if record.key == b"bad":
            raise ValueError("a record that cannot be replayed")
        if producer_id >= 0:
            self.pending.setdefault(producer_id, []).append(record)
        else:
            self.values[record.key] = record.value

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        for record in self.pending.pop(producer_id, []):
            if committed:
                self.values[record.key] = record.value

    def on_loaded(self, image, now: Now) -> Decision:
        self.loaded += 1
        return Decision(timers=((("tick",), now.ms + 1000),))

    def on_timer(self, key: Hashable, now: Now) -> Decision:
        self.fired.append(key)
        return Decision()

    def on_metadata(self, delta, image, now: Now) -> Decision:
        self.images += 1
        return Decision()

    def waiting(self):
        return self.parked

    def put(self, key: str, value: str, reply_to) -> Decision:
        return Decision(records=(CoordinatorRecord(key.encode(), value.encode()),), replies=((reply_to, value),))

    def get(self, key: str, reply_to) -> Decision:
        return Decision(replies=((reply_to, self.values.get(key.encode())),))

    def park(self, reply_to) -> Decision:
        self.parked.append(reply_to)
        return Decision()


class RuntimeHarness:
    """A runtime of two partitions around logs in memory."""

    def __init__(self) -> None:
        self.logs = {0: Log(), 1: Log()}
        self.clock = ManualClock()
        self.runtime: CoordinatorRuntime[Counter] = CoordinatorRuntime(
            "__things",
            lambda _partition, _epoch: Counter(),
            self.logs.get,
            loop=asyncio.get_running_loop(),
            clock=self.clock,
            write_timeout_ms=50,
        )
        self.runtime.partitions = 2

    async def load(self, partition: int = 0, epoch: int = 1) -> None:
        self.runtime.load(partition, epoch)
        await self.loaded()

    async def loaded(self) -> None:
        while self.runtime.loading:  # noqa: ASYNC110 - loading takes a few turns of this very loop
            await asyncio.sleep(0)

    def submit(self, decide, partition: int = 0) -> list:
        answers: list = []
        self.runtime.submit(partition, lambda shard, _, reply_to: decide(shard, reply_to), answers.append)
        return answers

    def put(self, key: str, value: str) -> list:
        return self.submit(lambda shard, reply_to: shard.put(key, value, reply_to))

    def get(self, key: str) -> list:
        return self.submit(lambda shard, reply_to: shard.get(key, reply_to))


def code(answers: list) -> ErrorCode:
    (answer,) = answers
    assert isinstance(answer, KlammError)
    return answer.code


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
    task = asyncio.ensure_future(harness.runtime.ask(0, lambda shard, _, reply_to: shard.put("k", "v", reply_to)))
    await asyncio.sleep(0)
    harness.logs[0].commit()
    assert await task == "v"
    with pytest.raises(KlammError, match="not served"):
        await harness.runtime.ask(1, lambda shard, _, reply_to: shard.get("k", reply_to))
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


class FullLog(Log):
    """A log whose disk may be full: what a turn appended is refused at its end, otherwise committed."""

    full = False

    def append(self, batch: bytearray, transaction_version: int = 0) -> int:
        base = super().append(batch, transaction_version)
        asyncio.get_running_loop().call_soon(self.settle)
        return base

    def settle(self) -> None:
        if self.end_offset > self.high_watermark:
            if self.full:
                self.fail(ErrorCode.KAFKA_STORAGE_ERROR)
            else:
                self.commit()


class Eager(Counter):
    """Writes as soon as it is loaded, as a group does whose members have gone meanwhile."""

    def on_loaded(self, image, now: Now) -> Decision:
        return Decision(records=(CoordinatorRecord(b"loaded", b""),))


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a state of this very loop
            await asyncio.sleep(0.001)


async def test_a_shard_on_a_full_disk_is_not_loaded_in_a_loop(monkeypatch):
    monkeypatch.setattr(coordinator_runtime, "RELOAD_S", 0.001)
    monkeypatch.setattr(coordinator_runtime, "RELOAD_MAX_S", 0.004)
    lines, pauses = [], []
    fake_log = SimpleNamespace(warning=lambda text, **_: lines.append(text), info=lambda *_, **__: None)
    monkeypatch.setattr(coordinator_runtime, "log", fake_log)
    harness = RuntimeHarness()
    harness.logs[0] = full = FullLog()
    harness.runtime._make_shard = lambda _partition, _epoch: Eager()
    start = harness.runtime._start_loading

    def note(partition, epoch, pause_s=0.0):
        pauses.append(pause_s)
        start(partition, epoch, pause_s)

    harness.runtime._start_loading = note
    full.full = True
    harness.runtime.load(0, 1)
    await until(lambda: len(pauses) >= 7)
    assert pauses[:7] == [0.0, 0.0, 0.001, 0.002, 0.004, 0.004, 0.004], "at once, at once, then later and later"
    assert lines == ["coordinator reloading: write failed"], "said once"
    full.full = False
    await until(lambda: harness.runtime.active and full.high_watermark)
    written = harness.put("a", "1")
    await until(lambda: written)
    assert written == ["1"], "there is room again"

    del pauses[:]
    full.full = True
    lost = harness.put("a", "2")
    await until(lambda: lost and len(pauses) >= 3)
    assert code(lost) is ErrorCode.NOT_COORDINATOR
    assert (pauses[:3], len(lines)) == ([0.0, 0.001, 0.002], 2), "a later failure is logged and counted anew"
    harness.runtime.stop()


class Behind(Log):
    """A log that refuses appends while too few replicas are in sync, and counts how often that is checked."""

    def __init__(self) -> None:
        self.behind, self.checks = False, 0
        super().__init__()

    @property
    def under_min_isr(self) -> bool:
        self.checks += 1
        return self.behind

    @under_min_isr.setter
    def under_min_isr(self, value: bool) -> None:
        self.behind, self.refuse = value, ErrorCode.NOT_ENOUGH_REPLICAS if value else None


async def test_a_shard_without_enough_replicas_is_loaded_when_they_are_back(monkeypatch):
    monkeypatch.setattr(coordinator_runtime, "RELOAD_S", 0.001)
    monkeypatch.setattr(coordinator_runtime, "IN_SYNC_S", 0.001)
    harness = RuntimeHarness()
    harness.logs[0] = log = Behind()
    made = []
    harness.runtime._make_shard = lambda *_: made.append(Counter()) or made[-1]
    await harness.load()
    log.under_min_isr = True
    assert code(harness.put("a", "1")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await harness.loaded()
    assert (len(made), harness.get("a")) == (2, [None]), "at once, so that reads are served"
    assert code(harness.put("a", "1")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await until(lambda: log.checks > 10)
    assert code(harness.put("a", "1")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert len(made) == 2, "and then no more, however long it lasts"
    log.under_min_isr = False
    await harness.loaded()
    written = harness.put("a", "1")
    log.commit()
    assert (written, len(made)) == (["1"], 3)
    harness.runtime.stop()


async def test_who_asks_a_shard_that_is_left_alone_hears_that_it_is_being_loaded(monkeypatch):
    monkeypatch.setattr(coordinator_runtime, "RELOAD_S", 3600.0)
    monkeypatch.setattr(coordinator_runtime, "RELOAD_MAX_S", 3600.0)
    harness = RuntimeHarness()
    harness.logs[0] = full = FullLog()
    await harness.load()
    full.full = True
    for value in ("1", "2"):
        await harness.loaded()
        lost = harness.put("a", value)
        await until(lambda lost=lost: lost)
    assert code(harness.get("a")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    full.full = False
    await harness.load(epoch=2)
    assert harness.get("a") == [None], "a new epoch begins anew"
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
