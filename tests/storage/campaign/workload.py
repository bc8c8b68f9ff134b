"""A seeded random life of a LogManager: everything that happens to logs, in any order, with a model beside it."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from klamm.model.clock import ManualClock
from klamm.model.ids import TopicPartition, Uuid
from klamm.records import build_batch
from klamm.records.control import build_end_txn_marker
from klamm.replication import log_dir_moves
from klamm.storage import CleanerConfig, Log, LogConfig, LogManager, Origin, StorageConfig, clean_shutdown

from .model import Batch, Partition, State, replay
from .moves import HOMES, SteppedMoves, directory_of, home_of, log_dirs, settle
from .trace import TracingDisk

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
NODE = 1
START_MS = 1_700_000_000_000
NEVER_MS = 10**12
"""What the manager does by the clock, the workload asks for itself."""
PIECE_BYTES = 700
"""A move copies so much at a time."""
LOG = LogConfig(segment_bytes=2600, index_interval_bytes=250, file_delete_delay_ms=1000)

AGED = replace(LOG, retention_bytes=5000, file_delete_delay_ms=300)
KEYED = replace(
    LOG,
    segment_bytes=1500,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=2000,
)
CONFIGS = {"aged": AGED, "keyed": KEYED}

PLAIN, TXN, COPY, OLD, LATEST = (TopicPartition(name, 0) for name in ("plain", "txn", "copy", "aged", "keyed"))
LASTING = (PLAIN, TXN, COPY, OLD, LATEST)


def config_for(topic: str) -> LogConfig:
    """The settings of a topic of the workload."""
    return CONFIGS.get(topic, LOG)


class Job(Future[Any]):
    """Work of `Later`; waiting for it runs it, with all that came before."""

    def __init__(self, later: "Later") -> None:
        super().__init__()
        self._later = later

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            self._later.run_up_to(self)
        return super().exception(timeout)


class Later:
    """Threads whose work is done when the workload says so, or never: a crash may come first."""

    def __init__(self) -> None:
        self._jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        job = Job(self)
        self._jobs.append((job, lambda: call(*args, **kwargs)))
        return job

    def run_up_to(self, job: Job) -> None:
        self.run(1 + next(i for i, (other, _) in enumerate(self._jobs) if other is job))

    def run(self, count: int) -> None:
        jobs, self._jobs = self._jobs[:count], self._jobs[count:]
        for job, call in jobs:
            try:
                job.set_result(call())
            except OSError as error:
                job.set_exception(error)

    def shutdown(self, wait: bool = True, **_: Any) -> None:
        self.run(len(self._jobs) if wait else 0)


class Workload:
    """Runs steps and notes after each where the trace stands and what the logs hold."""

    def __init__(self, seed: int, folder: str, *, moving: int = 1) -> None:
        self.chance = random.Random(seed)
        self._moving = moving
        """How many times as often as usual replicas move."""
        self.clock = ManualClock(START_MS)
        self.disk = TracingDisk(folder)
        self.folder = folder
        self.state: State = {}
        self.steps: list[tuple[int, str, State]] = []
        """(ops so far, name of the step, state after it)"""
        self._epochs: dict[TopicPartition, int] = {}
        self._topics = 0
        self._value = 0
        self.manager = self._start()
        self._note("start")

    # --- the frame ---------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        for partition in LASTING:
            self._create(partition)
            self._note("create")
        choices: list[tuple[Callable[[], None], int]] = [
            (self.produce, 10),
            (self.produce_idempotent, 10),
            (self.retry, 3),
            (self.transact, 12),
            (self.end_transaction, 6),
            (self.replicate, 10),
            (self.truncate, 3),
            (self.empty, 1),
            (self.elect, 2),
            (self.delete_records, 3),
            (self.roll, 2),
            (self.flush, 3),
            (self.write_indexes, 1),
            (self.checkpoint, 4),
            (self.work, 8),
            (self.create_topic, 1),
            (self.delete_topic, 1),
            (self.retain, 6),
            (self.produce_keyed, 8),
            (self.compact, 4),
            (self.begin_move, 3 * self._moving),
            (self.move_on, 14 * self._moving),
            (self.give_up_move, 1),
            (self.restart_killed, 1),
            (self.restart_clean, 1),
        ]
        for _ in range(steps):
            (step,) = self.chance.choices([c for c, _ in choices], [w for _, w in choices])
            self.clock.advance(self.chance.randint(0, 200))
            step()
            self._note(step.__name__)

    def _start(self) -> LogManager:
        config = StorageConfig(
            log_dirs=log_dirs(self.folder),
            recovery_threads_per_dir=1,
            retention_check_interval_ms=NEVER_MS,
            checkpoint_interval_ms=NEVER_MS,
            cleaner=CleanerConfig(enabled=False, dedupe_buffer_bytes=1 << 20),
        )
        manager = LogManager(config, clock=self.clock, disk=self.disk)
        manager._threads.shutdown()
        self.later = manager._threads = Later()
        manager.start(CLUSTER, NODE, format_empty=True, config_for=config_for)
        settle(manager, self.state)
        self.moves = SteppedMoves(manager, self.clock, self._assigned)
        self.moves.resume()
        return manager

    def _assigned(self, partition: TopicPartition, directory: Uuid) -> None:
        home = next(name for name in HOMES if directory_of(self.manager, name) == directory)
        self.state[partition] = replace(self.state[partition], home=home)

    def _note(self, step: str) -> None:
        for partition, known in self.state.items():
            log = self.log(partition)
            assert log.log_end_offset == known.end, (step, partition, log.log_end_offset, known.end)
            self.state[partition] = replace(
                known,
                start=log.log_start_offset,
                first=log.segments[0].base_offset,
                recovery_point=log.recovery_point,
            )
        self.steps.append((len(self.disk.ops), step, dict(self.state)))

    def log(self, partition: TopicPartition) -> Log:
        log = self.manager.get(*partition)
        assert log is not None, partition
        return log

    def _pick(self) -> TopicPartition:
        return self.chance.choice([p for p in self.state if p != COPY])

    def _rows(self, count: int | None = None) -> list[tuple[int, bytes, bytes, tuple[()]]]:
        rows = []
        for _ in range(count or self.chance.randint(1, 4)):
            self._value += 1
            padding = b"." * self.chance.choice((0, 0, 40, 300))
            time = self.clock.now_ms() + self.chance.randint(-500, 500)
            rows.append((time, b"key-%d" % self.chance.randint(0, 9), b"%d " % self._value + padding, ()))
        return rows

    def _append(self, partition: TopicPartition, batches: list[bytearray]) -> None:
        """Stage and commit as a leader does, and let the model have the bytes with the offsets it expects."""
        log, known = self.log(partition), self.state[partition]
        epoch = self._epochs.get(partition, 0)
        for batch in batches:
            expected = Batch.of(batch)
            assert log.stage(memoryview(batch), epoch, self.clock.now_ms()) == known.end
            known = known.appended(_placed(expected.data, known.end, epoch))
        log.write_staged()
        self.state[partition] = known

    # --- steps -------------------------------------------------------------------------------------------------------

    def produce(self) -> None:
        codecs = (0, 0, 1, 3, 4)
        batches = [
            build_batch(self._rows(), codec=self.chance.choice(codecs)) for _ in range(self.chance.randint(1, 4))
        ]
        self._append(self._pick(), batches)

    def produce_idempotent(self) -> None:
        partition = self._pick()
        self._append(partition, [self._next_of(partition, self.chance.randint(1, 3))])

    def retry(self) -> None:
        partition = self._pick()
        known = replay(self.state[partition].batches).producers
        wanted = [met[2] for producer in known.values() if producer.txn_first_offset < 0 for met in producer.batches]
        matches = [batch for batch in self.state[partition].batches if batch.base in wanted[-1:]]
        for batch in matches:
            again = memoryview(bytearray(_placed(batch.data, 0, -1)))
            assert self.log(partition).append_as_leader(again, 0, self.clock.now_ms()) == batch.base, "a duplicate"

    def transact(self) -> None:
        count = self.chance.randint(1, 2)
        self._append(TXN, [self._next_of(TXN, self.chance.randint(11, 13), transactional=True) for _ in range(1)])
        if count == 2:
            self._append(TXN, [self._next_of(TXN, self.chance.randint(11, 13), transactional=True)])

    def end_transaction(self) -> None:
        known = self.state[TXN]
        producers = replay(known.batches).producers
        open_ones = [producer_id for producer_id, producer in producers.items() if producer.txn_first_offset >= 0]
        if not open_ones:
            return
        producer_id = self.chance.choice(open_ones)
        epoch, leader_epoch = producers[producer_id].epoch, self._epochs.get(TXN, 0)
        committed, now = self.chance.random() < 0.5, self.clock.now_ms()
        marker = build_end_txn_marker(
            committed=committed, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=2, timestamp=now
        )
        self.log(TXN).append_as_leader(memoryview(bytearray(marker)), leader_epoch, now, origin=Origin.COORDINATOR)
        self.state[TXN] = known.appended(_placed(bytes(marker), known.end, leader_epoch))

    def replicate(self) -> None:
        known = self.state[COPY]
        epoch = max(self._epochs.get(COPY, 0), 0)
        data = b""
        after = known
        for _ in range(self.chance.randint(1, 4)):
            if self.chance.random() < 0.1:
                epoch += 1
            batch = build_batch(self._rows(), base_offset=after.end, leader_epoch=epoch)
            data += batch
            after = after.appended(bytes(batch))
        self._epochs[COPY] = epoch
        self.log(COPY).append_as_follower(memoryview(bytearray(data)))
        self.state[COPY] = after

    def truncate(self) -> None:
        known = self.state[COPY]
        if known.end <= known.start:
            return
        offset = self.chance.randint(max(known.start, known.end - 30), known.end)
        self.log(COPY).truncate_to(offset)
        self.manager.checkpoint()
        self.state[COPY] = _saved(known.truncated(offset), self.log(COPY))
        self._saved_all()
        # A follower truncates under a new leader.
        self._epochs[COPY] = self._epochs.get(COPY, 0) + 1

    def empty(self) -> None:
        known = self.state[COPY]
        offset = known.end + self.chance.randint(0, 20)
        self.log(COPY).truncate_fully_and_start_at(offset)
        self.manager.checkpoint()
        self.state[COPY] = _saved(known.emptied(offset), self.log(COPY))
        self._saved_all()
        self._epochs[COPY] = self._epochs.get(COPY, 0) + 1

    def retain(self) -> None:
        """Retention on one log: by size, or what lies below its start."""
        log = self.log(self.chance.choice(list(self.state)))
        if log.topic_partition == OLD:
            log.advance_high_watermark(log.log_end_offset)
        self.manager.housekeeping.to_retain.append(log)
        self.manager.tick()

    def produce_keyed(self) -> None:
        """New values for few keys, and now and then a tombstone."""
        rows = [(time, key, None if self.chance.random() < 0.2 else value, ()) for time, key, value, _ in self._rows()]
        self._append(LATEST, [build_batch(rows, codec=self.chance.choice((0, 0, 4)))])

    def compact(self) -> None:
        """One round of the cleaner, start to end."""
        log, cleaner, now = self.log(LATEST), self.manager.cleaner, self.clock.now_ms()
        log.advance_high_watermark(log.log_end_offset)
        plan = cleaner.plan(log, now)
        moving = any(move.source is log for move in self.moves.under_way)
        if moving or len(log.segments) < 2 or plan.end_offset <= plan.first_dirty_offset:
            return
        woken = threading.Event()
        cleaner.wake = woken.set
        if not cleaner.start(log, plan, now):
            self.later.run(1000)  # it had to become durable first
            self.manager.tick()
            cleaner.start(log, plan, now)
        while cleaner.busy:
            woken.wait(1)
            woken.clear()
            cleaner.step()

    def begin_move(self) -> None:
        """To the other log dir, for whichever partition."""
        partition = self.chance.choice(list(self.state))
        here = home_of(self.manager, self.log(partition))
        (there,) = (path for path in log_dirs(self.folder) if not path.endswith("/" + here))
        self.moves.start(*partition, there)

    def move_on(self) -> None:
        """One step of one move: a piece, a sync, a word to the metadata, or the end of it."""
        if self.moves.under_way:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(log_dir_moves, "PIECE_BYTES", PIECE_BYTES)
                move = self.chance.choice(self.moves.under_way)
                durable = move.source.recovery_point
                if self.moves.step(move):
                    assert self.log(move.source.topic_partition).recovery_point >= durable, "what was durable stays so"

    def give_up_move(self) -> None:
        if self.moves.under_way:
            move = self.chance.choice(self.moves.under_way)
            partition, home = move.source.topic_partition, home_of(self.manager, move.source)
            self.moves.give_up(move)
            # The broker reports where its replicas lie once they lie elsewhere than the metadata says.
            self.state[partition] = replace(self.state[partition], home=home)

    def elect(self) -> None:
        partition = self._pick()
        self._epochs[partition] = self._epochs.get(partition, 0) + 1

    def delete_records(self) -> None:
        partition = self.chance.choice(list(self.state))
        log = self.log(partition)
        log.advance_high_watermark(self.chance.randint(log.high_watermark, log.log_end_offset))
        log.delete_records(self.chance.randint(log.log_start_offset, log.high_watermark))

    def roll(self) -> None:
        self.log(self.chance.choice(list(self.state))).roll(self.clock.now_ms())

    def flush(self) -> None:
        self.log(self.chance.choice(list(self.state))).flush()

    def write_indexes(self) -> None:
        self.log(self.chance.choice(list(self.state))).write_indexes()

    def checkpoint(self) -> None:
        self.manager.checkpoint()
        self._saved_all()

    def work(self) -> None:
        self.later.run(self.chance.randint(1, 3))
        self.manager.tick()

    def create_topic(self) -> None:
        self._topics += 1
        self._create(TopicPartition(f"topic-{self._topics}", self.chance.randint(0, 11)))

    def delete_topic(self) -> None:
        extra = [partition for partition in self.state if partition not in LASTING]
        if extra:
            partition = self.chance.choice(extra)
            self.manager.delete(*partition)
            for move in self.moves.under_way:
                if move.source.topic_partition == partition:
                    self.moves.give_up(move)
            del self.state[partition]

    def restart_killed(self) -> None:
        self.later = self.manager._threads = Later()
        self.manager.close(clean=False)
        self.manager = self._start()

    def restart_clean(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clean_shutdown, "SYNCFS_LOGS_MIN", self.chance.choice((1, 64)))
            self.manager.close()
        self._saved_all(closed=True)
        self.manager = self._start()

    def _create(self, partition: TopicPartition) -> None:
        topic_id = self.chance.randbytes(16)
        log = self.manager.create(*partition, topic_id, config_for(partition.topic))
        home = home_of(self.manager, log)
        self.state[partition] = Partition(topic_id, compacted=partition == LATEST, home=home)

    def _saved_all(self, *, closed: bool = False) -> None:
        for partition, known in self.state.items():
            self.state[partition] = known if closed else _saved(known, self.log(partition))

    def _next_of(self, partition: TopicPartition, producer_id: int, **fields: Any) -> bytearray:
        """The producer's next batch: sequence goes on, now and then with a new epoch."""
        known = replay(self.state[partition].batches).producers.get(producer_id)
        if known is None:
            epoch, sequence = 0, 0
        else:
            epoch = known.epoch
            sequence = known.batches[-1][1] + 1 if known.batches else 0
            if known.txn_first_offset < 0 and self.chance.random() < 0.05:
                epoch, sequence = epoch + 1, 0
        return build_batch(
            self._rows(), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields
        )


def _placed(data: bytes, offset: int, epoch: int) -> bytes:
    return offset.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big", signed=True) + data[16:]


def _saved(known: Partition, log: Log) -> Partition:
    return replace(known, saved_start=log.log_start_offset, saved_mark=log.high_watermark)
