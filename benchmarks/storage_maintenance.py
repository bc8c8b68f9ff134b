"""What keeping a log costs: compaction, group commit, reopening after a clean stop, recovery after a kill.

    python benchmarks/storage.py --maintenance [--megabytes N]

Each figure is the median of three runs. Data goes to a temporary folder, which must be on a real disk for the syncs to
mean anything.
"""

import asyncio
import os
import random
import shutil
import statistics
import tempfile
import time

from klamm.records import build_batch
from klamm.storage import CleanerConfig, LogConfig, LogManager, StorageConfig
from klamm.telemetry import log as telemetry

NOW = 1_700_000_000_000
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
RUNS = 3


def started(folder: str, **config) -> LogManager:
    manager = LogManager(StorageConfig(log_dirs=(folder,), **config))
    manager.start(CLUSTER, 1, format_empty=True)
    return manager


def fill_keyed(manager: LogManager, megabytes: int, *, keys: int, value: int, per_batch: int, codec: int):
    """A log whose keys are written again and again in random order."""
    log = manager.create("t", 0, b"t" * 16, LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=64 << 20))
    chance = random.Random(7)
    body = bytes(chance.randrange(97, 123) for _ in range(value))
    while log.size_bytes < megabytes * 1_000_000:
        rows = [(NOW, b"key-%08d" % chance.randrange(keys), body, ()) for _ in range(per_batch)]
        log.append_as_leader(memoryview(build_batch(rows, codec=codec)), 0, NOW)
    log.advance_high_watermark(log.log_end_offset)
    log.roll(NOW)
    log.flush()
    return log


def compaction(folder: str, megabytes: int) -> None:
    print(f"{'compaction':<44} {'MB/s read':>10} {'records/s':>12} {'before MB':>10} {'after MB':>9}")
    for name, per_batch, codec in (
        ("100-byte records, 100 per batch", 100, 0),
        ("100-byte records, one per batch", 1, 0),
        ("100-byte records, 100 per batch, lz4", 100, 3),
        ("100-byte records, 100 per batch, zstd", 100, 4),
    ):
        rates, records, before, after = [], [], 0, 0
        for run in range(RUNS):
            path = f"{folder}/compaction-{per_batch}-{codec}-{run}"
            manager = started(path, cleaner=CleanerConfig(enabled=False))
            size = megabytes if not codec else megabytes // 4
            log = fill_keyed(manager, size, keys=size * 500, value=80, per_batch=per_batch, codec=codec)
            before, count = log.size_bytes, log.log_end_offset
            cleaner = manager.cleaner
            begin = time.perf_counter()
            assert cleaner.start(log, cleaner.plan(log, NOW), NOW)
            while cleaner.busy:
                cleaner.step()
                time.sleep(0.001)
            seconds = time.perf_counter() - begin
            after = log.size_bytes
            rates.append(before / seconds / 1e6)
            records.append(count / seconds)
            manager.close(clean=False)
            shutil.rmtree(path)
        print(
            f"{name:<44} {statistics.median(rates):>10.0f} {statistics.median(records):>12,.0f} "
            f"{before / 1e6:>10.0f} {after / 1e6:>9.1f}"
        )


def fdatasyncs_per_second(folder: str) -> float:
    """The machine's own rate: one writer, one small write, one sync."""
    fd = os.open(f"{folder}/probe", os.O_WRONLY | os.O_CREAT, 0o644)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < 1.0:
        os.pwrite(fd, b"x" * 200, 200 * count)
        os.fdatasync(fd)
        count += 1
    os.close(fd)
    return count / (time.perf_counter() - begin)


async def _produce(manager: LogManager, logs: list, producers: int, seconds: float) -> tuple[int, int]:
    loop = asyncio.get_running_loop()
    manager.group_sync.call_on_loop = loop.call_soon_threadsafe
    before, end, commits = manager.group_sync.syncs, time.perf_counter() + seconds, 0

    async def producer(number: int) -> int:
        done, log = 0, logs[number % len(logs)]
        while time.perf_counter() < end:
            acknowledged = loop.create_future()
            log.append_as_leader(memoryview(build_batch([(NOW, None, b"v" * 100, ())])), 0, NOW)
            manager.group_sync.wait(log, lambda _, acknowledged=acknowledged: acknowledged.set_result(None))
            await acknowledged
            done += 1
        return done

    commits = sum(await asyncio.gather(*(producer(n) for n in range(producers))))
    return commits, manager.group_sync.syncs - before


def group_commit(folder: str) -> None:
    rate = fdatasyncs_per_second(folder)
    print(f"fdatasync of this machine: {rate:,.0f} per second")
    print(f"{'flush.messages=1':<44} {'commits/s':>10} {'syncs/s':>10} {'commits/sync':>13} {'of one syncer':>14}")
    for producers, partitions in ((1, 1), (64, 1), (64, 8)):
        path = f"{folder}/group-{producers}-{partitions}"
        manager = started(path)
        logs = [manager.create("t", i, b"t" * 16, LogConfig(flush_messages=1)) for i in range(partitions)]
        commits, syncs = asyncio.run(_produce(manager, logs, producers, 2.0))
        manager.close()
        shutil.rmtree(path)
        print(
            f"{f'{producers} producers, {partitions} partitions':<44} {commits / 2:>10,.0f} {syncs / 2:>10,.0f} "
            f"{commits / max(syncs, 1):>13.1f} {commits / 2 / rate:>13.1f}x"
        )


def reopening(folder: str, partitions: int = 10_000) -> None:
    path = f"{folder}/reopen"
    manager = started(path)
    for i in range(partitions):
        log = manager.create(f"topic{i % 100}", i // 100, b"t" * 16, LogConfig())
        log.append_as_leader(memoryview(build_batch([(NOW, None, b"v", ())])), 0, NOW)
    begin = time.perf_counter()
    manager.close()
    stopped = time.perf_counter() - begin
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        manager = started(path)
        times.append(time.perf_counter() - begin)
        manager.close()
    shutil.rmtree(path)
    print(
        f"{partitions:,} partitions: first clean stop {stopped:.1f} s, reopened in {statistics.median(times):.2f} s "
        f"({statistics.median(times) / partitions * 1e6:.0f} us each)"
    )


def recovery(folder: str, megabytes: int) -> None:
    for name, size in (("16 KB batches", 160), ("100-byte batches", 1)):
        path = f"{folder}/recovery"
        manager = started(path)
        log = manager.create("t", 0, b"t" * 16, LogConfig(segment_bytes=256 << 20))
        batch = build_batch([(NOW, None, b"v" * (100 if size > 1 else 20), ())] * size)
        wanted = megabytes if size > 1 else megabytes // 8
        while log.size_bytes < wanted * 1_000_000:
            for _ in range(50):
                log.stage(memoryview(bytearray(batch)), 0, NOW)
            log.write_staged()
        written = log.size_bytes
        copy = f"{path}-killed"
        shutil.copytree(path, copy)
        manager.close(clean=False)
        times = []
        for _ in range(RUNS):
            again = f"{path}-again"
            shutil.copytree(copy, again)
            begin = time.perf_counter()
            killed = started(again)
            times.append(time.perf_counter() - begin)
            killed.close(clean=False)
            shutil.rmtree(again)
        shutil.rmtree(path)
        shutil.rmtree(copy)
        print(f"recovery of {written / 1e6:.0f} MB of {name}: {written / statistics.median(times) / 1e6:.0f} MB/s")


def run(megabytes: int) -> None:
    telemetry.configure(telemetry.Level.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        compaction(folder, megabytes)
        group_commit(folder)
        recovery(folder, megabytes * 4)
        reopening(folder)
