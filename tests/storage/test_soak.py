"""Years of churn in minutes, on a real node: every key rewritten again and again, short retention, one eye on a clock.

A short life in `make test`; `make sim` lets a million keys be written twenty times (KLAMM_SOAK_KEYS, KLAMM_SOAK_ROUNDS)
and then also compares how long a producer waits with and without the cleaner at work.
"""

import datetime as dt
import os
import random
import re
import statistics
import threading
import time
from pathlib import Path

import pytest

from harness import KlammProcess, Wire, batch
from klamm.records import build_batch, iter_batches

KEYS = int(os.environ.get("KLAMM_SOAK_KEYS", "10000"))
ROUNDS = int(os.environ.get("KLAMM_SOAK_ROUNDS", "4"))
SEED = int(os.environ.get("KLAMM_SIM_SEED", "0"))
JUDGED = "KLAMM_SOAK_KEYS" in os.environ
"""Whether latencies are judged: only where there are enough of them, and nothing else runs on the machine."""
SLOWER_MAX = 3.0
PAIRS = 5
PER_BATCH = 1000
SEGMENT = 16_000_000 if KEYS >= 100_000 else 200_000
SMALL_SEGMENT = 1_048_576
PARTITIONS = 20
KEPT = 3 * SMALL_SEGMENT
RECORD_BYTES = 40
MEMORY_MAX = 600_000_000
FILES_MAX = 600
PATIENCE_S = 600
_COMPACTED = re.compile(r"^(\S+ \S+) INFO storage log compacted .* seconds=(\S+)", re.MULTILINE)
NODE = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "134217728",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "500",
    "log.initial.task.delay.ms": "0",
}


class Prober(threading.Thread):
    """A producer of single records that notes how long each took to be acknowledged."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, float]] = []
        """(when it was sent, seconds until it was acknowledged)"""
        self._port, self._topic = port, topic
        self.over = threading.Event()

    def run(self) -> None:
        with Wire(self._port) as wire:
            while not self.over.wait(0.003):
                before = time.time()
                assert wire.produce(self._topic, batch(b"probe"), acks=-1).error_code == 0
                self.samples.append((before, time.time() - before))


class Watch(threading.Thread):
    """The most of everything the node has had so far."""

    def __init__(self, klamm: KlammProcess) -> None:
        super().__init__(daemon=True)
        self._klamm = klamm
        self.over = threading.Event()
        self.disk = self.memory = self.files = 0

    def run(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self.over.wait(0.5):
            root = Path(f"/proc/{self._klamm.pid}")
            self.memory = max(self.memory, int((root / "statm").read_text().split()[1]) * page)
            self.files = max(self.files, len(os.listdir(root / "fd")))
            self.disk = max(self.disk, used(self._klamm.data))


def used(folder: Path) -> int:
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(top, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def rewrite(wire: Wire, topic: str, number: int) -> None:
    """A new value for every key, in an order of its own."""
    keys = list(range(KEYS))
    random.Random(SEED + number).shuffle(keys)
    now = int(time.time() * 1000)
    for start in range(0, KEYS, PER_BATCH):
        rows = [(now, b"%08d" % key, b"%d of %d" % (number, key), ()) for key in keys[start : start + PER_BATCH]]
        assert wire.produce(topic, bytes(build_batch(rows)), acks=1).error_code == 0


def churn(port: int, topic: str, over: threading.Event) -> None:
    """Ten times as much as retention keeps, over and over."""
    value = random.Random(SEED).randbytes(100_000)
    with Wire(port) as wire:
        while not over.is_set():
            for partition in range(PARTITIONS):
                assert wire.produce(topic, batch(value), acks=1, partition=partition).error_code == 0
            over.wait(0.02)


def latest(wire: Wire, topic: str) -> dict[bytes, bytes]:
    newest: dict[bytes, bytes] = {}
    offset, end = wire.list_offset(topic, -2).offset, wire.end_offset(topic)
    while offset < end:
        part = wire.fetch(topic, offset, partition_max_bytes=8 << 20, max_bytes=8 << 20)
        assert part.error_code == 0
        for view in iter_batches(part.records or b""):
            view.check_crc()
            newest.update((row[2], row[3]) for row in view.decode_rows())
            offset = view.next_offset
    return newest


def cleanings(klamm: KlammProcess) -> list[tuple[float, float]]:
    """(begin, end) of every round of the cleaner, as the node's log tells."""
    periods = []
    for at, seconds in _COMPACTED.findall(klamm.log()):
        end = dt.datetime.strptime(at, "%Y-%m-%d %H:%M:%S.%f").astimezone().timestamp()
        periods.append((end - float(seconds), end))
    return periods


def let(wire: Wire, topic: str, lag_ms: int) -> None:
    """Keep the cleaner from a topic, or let it loose."""
    settings = {"min.compaction.lag.ms": str(lag_ms), "min.cleanable.dirty.ratio": "0.01"}
    changes = [{"name": name, "config_operation": 0, "value": value} for name, value in settings.items()]
    resource = {"resource_type": 2, "resource_name": topic, "configs": changes}
    answer = wire.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    assert int(answer.responses[0].error_code) == 0


def one_at_a_time(klamm: KlammProcess, wire: Wire, topic: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """(begin, end) of a while that belongs to the prober alone, and of the round of the cleaner after it."""
    let(wire, topic, 10**12)
    rewrite(wire, topic, ROUNDS - 1)
    time.sleep(2)
    known, begin = len(cleanings(klamm)), time.time()
    time.sleep(5)
    quiet = (begin, time.time())
    let(wire, topic, 0)
    deadline = time.monotonic() + PATIENCE_S
    while len(cleaned := cleanings(klamm)) == known:
        assert time.monotonic() < deadline, "nothing was compacted"
        time.sleep(0.05)
    return quiet, cleaned[known]


def during(samples: list[tuple[float, float]], spans: list[tuple[float, float]]) -> list[float]:
    return [took for at, took in samples if any(begin <= at <= end for begin, end in spans)]


def p99(samples: list[float]) -> float:
    return statistics.quantiles(samples, n=100)[98]


@pytest.mark.timeout(3600)
def test_a_log_for_years(tmp_path: Path, capsys):
    print(f"seed {SEED}")
    with KlammProcess(tmp_path, overrides=NODE) as klamm, Wire(klamm.port, timeout=120) as wire:
        compacted = wire.create_topic(
            cleanup_policy="compact", internal_segment_bytes=str(SEGMENT), min_cleanable_dirty_ratio="0.5"
        )
        short = wire.create_topic(
            partitions=PARTITIONS, segment_bytes=str(SMALL_SEGMENT), retention_bytes=str(KEPT), retention_ms="60000"
        )
        prober, watch, over = Prober(klamm.port, wire.create_topic()), Watch(klamm), threading.Event()
        prober.start()
        watch.start()
        busy = threading.Thread(target=churn, args=(klamm.port, short, over), daemon=True)
        busy.start()
        for number in range(ROUNDS):
            rewrite(wire, compacted, number)
        over.set()
        busy.join()
        written = KEYS * ROUNDS
        deadline = time.monotonic() + PATIENCE_S
        while not cleanings(klamm):
            assert time.monotonic() < deadline, "nothing was compacted"
            time.sleep(0.1)
        quiet: list[tuple[float, float]] = []
        alone: list[tuple[float, float]] = []
        for _ in range(PAIRS if JUDGED else 0):
            written += KEYS
            pair = one_at_a_time(klamm, wire, compacted)
            quiet.append(pair[0])
            alone.append(pair[1])
        values = latest(wire, compacted)
        assert len(values) == KEYS
        wrong = [key for key, value in values.items() if value != b"%d of %d" % (ROUNDS - 1, int(key))]
        assert not wrong, f"{len(wrong)} keys have an older value, {wrong[0]!r} for one"
        starts = [wire.list_offset(short, -2, partition=partition).offset for partition in range(PARTITIONS)]
        assert not JUDGED or min(starts) > 0, f"retention has not let go of anything: {starts}\n{klamm.log()}"
        prober.over.set()
        prober.join()
        watch.over.set()
        watch.join()
        rounds = cleanings(klamm)
        klamm.stop()
    bound = 3 * KEYS * RECORD_BYTES + 4 * SEGMENT + PARTITIONS * (KEPT + 6 * SMALL_SEGMENT) + (100 << 20)
    assert watch.disk <= bound, f"{watch.disk:,} bytes on disk"
    assert watch.memory <= MEMORY_MAX, f"{watch.memory:,} bytes of memory"
    assert watch.files <= FILES_MAX, f"{watch.files} open files"
    if not JUDGED:
        return
    without, beside = during(prober.samples, quiet), during(prober.samples, alone)
    with capsys.disabled():
        print(
            f"\n{written:,} records for {KEYS:,} keys, {len(rounds)} rounds of the cleaner; at most "
            f"{watch.disk >> 20} MB on disk, {watch.memory >> 20} MB of memory, {watch.files} open files; produce: "
            f"p50 {statistics.median(without) * 1000:.2f}, p99 {p99(without) * 1000:.2f} ms of {len(without)} quiet, "
            f"p50 {statistics.median(beside) * 1000:.2f}, p99 {p99(beside) * 1000:.2f} ms of {len(beside)} beside it"
        )
    assert p99(beside) <= SLOWER_MAX * p99(without), "the cleaner makes producers wait"
