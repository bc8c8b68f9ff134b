"""What an append costs before any network: `Log.stage` and `Log.write_staged`, and what a read costs.

    python benchmarks/storage.py [--megabytes N]
    python benchmarks/storage.py --maintenance      what keeping it costs instead: see storage_maintenance.py

Prints CPU microseconds per batch, medians of five rounds. Data goes to a temporary folder and is removed.
"""

import argparse
import statistics
import tempfile
import time

from klamm.model.ids import TopicPartition
from klamm.records import build_batch
from klamm.storage import Disk, Log, LogConfig, OpenFiles, open_log

ROUNDS = 5
NOW = 1_700_000_000_000


def open_one(folder: str, name: str) -> Log:
    return open_log(
        f"{folder}/{name}-0",
        TopicPartition(name, 0),
        LogConfig(max_message_bytes=2_000_000),
        disk=Disk(),
        files=OpenFiles(),
        now_ms=NOW,
        clean=True,
    )


def batches(size: int, count: int, producer_id: int) -> list[bytearray]:
    rows = [(NOW, None, b"v" * max(1, min(1000, size - 80)), ())] * max(1, size // 1010)
    made = []
    sequence = 0
    for _ in range(count):
        extra = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence} if producer_id >= 0 else {}
        made.append(build_batch(rows, **extra))
        sequence += len(rows)
    return made


def measure(folder: str, size: int, producer_id: int, group: int, megabytes: int) -> tuple[float, float]:
    """Median (stage, stage + commit) microseconds per batch."""
    stage_us, both_us = [], []
    count = max(group, min(20_000, megabytes * 1_000_000 // max(size, 100)) // group * group)
    for round_ in range(ROUNDS):
        log = open_one(folder, f"t{size}-{producer_id}-{group}-{round_}")
        log.append_as_leader(memoryview(build_batch([(NOW, None, b"first", ())])), 0, NOW)
        views = [memoryview(batch) for batch in batches(size, count, producer_id)]
        staging = 0
        begin = time.process_time_ns()
        clock = time.perf_counter_ns
        for i in range(0, count, group):
            before = clock()
            for view in views[i : i + group]:
                log.stage(view, 0, NOW)
            staging += clock() - before
            log.write_staged()
        both_us.append((time.process_time_ns() - begin) / count / 1000)
        stage_us.append(staging / count / 1000)
        log.truncate_fully_and_start_at(0)
        log.close(clean=False)
    return statistics.median(stage_us), statistics.median(both_us)


def measure_read(folder: str, size: int, fetch: int) -> float:
    """Median microseconds of one read of `fetch` bytes, walking through the log."""
    log = open_one(folder, f"r{size}-{fetch}")
    for batch in batches(size, min(20_000, 64_000_000 // size), -1):
        log.append_as_leader(memoryview(batch), 0, NOW)
    results = []
    for _ in range(ROUNDS):
        offset, reads = 0, 0
        begin = time.process_time_ns()
        while offset < log.log_end_offset:
            region = log.read(offset, fetch, log.log_end_offset)
            assert region is not None
            offset = region.next_offset
            reads += 1
        results.append((time.process_time_ns() - begin) / reads / 1000)
    log.truncate_fully_and_start_at(0)
    log.close(clean=False)
    return statistics.median(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64, help="at most this much per round")
    parser.add_argument("--maintenance", action="store_true", help="compaction, group commit, recovery, reopening")
    options = parser.parse_args()
    megabytes = options.megabytes
    if options.maintenance:
        import storage_maintenance

        storage_maintenance.run(megabytes)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'batch':>10} {'producer id':>12} {'group':>6} {'stage us':>9} {'stage+commit us':>16}")
        for size in (100, 16_384, 1_000_000):
            for producer_id in (-1, 7):
                for group in (1, 20):
                    stage, both = measure(folder, size, producer_id, group, megabytes)
                    print(f"{size:>10} {'no' if producer_id < 0 else 'yes':>12} {group:>6} {stage:>9.2f} {both:>16.2f}")
        for size, fetch in ((100, 4096), (100, 1_000_000), (16_384, 1_000_000), (1_000_000, 1_000_000)):
            print(f"read {fetch} bytes of {size}-byte batches: {measure_read(folder, size, fetch):.1f} us")


if __name__ == "__main__":
    main()
