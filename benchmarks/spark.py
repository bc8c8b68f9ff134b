"""`python -m benchmarks.spark`: `format("klamm")` beside Spark's own Kafka connector, on one broker, in one session.

Both take turns at the same work over the same topic. CPU seconds are those of Spark's JVM, of all Python processes
under it, and of the broker; they say where the time goes, and wander less than rates on a machine that is not idle.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa

from benchmarks import machine
from compat import toolchain
from compat.brokers import KINDS, Broker
from klamm.client import Admin, Producer
from klamm.pipeline import session

FORMATS = ("kafka", "klamm")
PARTITIONS = 2
WIDE_PARTITIONS, WIDE_ROWS = 1000, 100
SMALL_BATCHES, SMALL_ROWS = 25, 20
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
NOTE = '"note":"' + "x" * 40 + '"'
RESULTS = Path(__file__).parent / "results" / "spark.json"


class Work(NamedTuple):
    """One piece of work; `reach` is what Klamm's rate (or time) must be of the connector's."""

    name: str
    title: str
    reach: float
    is_time: bool = False

    def is_reached(self, ratio: float) -> bool:
        """Whether a ratio is at least, or as a time at most, the reach, which has one decimal."""
        return round(ratio, 1) <= self.reach if self.is_time else round(ratio, 1) >= self.reach


WORKS = (
    Work("read", "read to a no-op sink, rows/s", 3.7),
    Work("json", "read with from_json and a windowed count, rows/s", 1.3),
    Work("write", "write, rows/s (Klamm exactly once, the connector at least once)", 2.4),
    Work("copy", "streaming copy from topic to topic, rows/s (Klamm exactly once, the connector at least once)", 1.5),
    Work("batch", "one micro-batch of twenty rows, each in a session as it comes, ms", 1.1, is_time=True),
    # Spark calls a Python process for Klamm's part, which the connector does not need.
    Work("batch_alike", "the same, the connector in Klamm's session too, ms", 1.5, is_time=True),
    Work("wide", "read a topic of many partitions with a hundred rows each, ms", 0.5, is_time=True),
)


class Costs(NamedTuple):
    """CPU seconds so far."""

    jvm: float
    python: float
    broker: float


class Bench:
    """A broker, a session and a topic full of rows."""

    def __init__(self, spark: Any, broker: Broker, rows: int, folder: Path) -> None:
        self.spark, self.broker, self.rows, self.folder = spark, broker, rows, folder
        self.servers = {"kafka.bootstrap.servers": broker.bootstrap}
        self.admin = Admin(bootstrap_servers=broker.bootstrap)
        self._count = 0

    def topic(self, partitions: int = PARTITIONS) -> str:
        self._count += 1
        name = f"spark-{self._count}"
        self.admin.create_topic(name, partitions)
        return name

    def fill(self) -> None:
        """JSON of about 100 bytes, a user in a thousand, a second apart every hundred rows."""
        self.source = self.topic()
        with Producer(bootstrap_servers=self.broker.bootstrap, batch_size=1 << 18) as producer:
            for first in range(0, self.rows, 100_000):
                values = [
                    f'{{"user":"user-{row % 1000:04}","amount":{row % 997},"at":{1_700_000_000 + row // 100},{NOTE}}}'
                    for row in range(first, min(first + 100_000, self.rows))
                ]
                producer.send_arrow(self.source, pa.table({"value": values}), timestamp=None)
            producer.flush()

    def fill_wide(self, partitions: int) -> None:
        """A topic of many partitions, of which each has a few rows."""
        self.broad = self.topic(partitions)
        with Producer(bootstrap_servers=self.broker.bootstrap) as producer:
            for row in range(partitions * WIDE_ROWS):
                producer.send(self.broad, b"x" * 100, partition=row % partitions)

    def load(self, kind: str, topic: str | None = None) -> Any:
        isolation = {"kafka.isolation.level": "read_committed"}
        return self.spark.read.format(kind).options(**self.servers, **isolation, subscribe=topic or self.source).load()

    def wide(self, kind: str) -> float:
        return timed(lambda: noop(self.load(kind, self.broad)))

    def copy(self, kind: str) -> float:
        """A streaming query over all rows of the topic, in one batch."""
        stream = self.spark.readStream.format(kind).options(
            **self.servers, subscribe=self.source, startingOffsets="earliest"
        )
        writer = stream.load().select("key", "value").writeStream.format(kind)
        writer = writer.options(**self.servers, topic=self.topic()).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.folder / f"copy-{self._count}"))
        return timed(lambda: writer.start().awaitTermination())

    def read(self, kind: str) -> float:
        return timed(lambda: noop(self.load(kind)))

    def json(self, kind: str) -> float:
        from pyspark.sql import functions as f

        rows = f.from_json(f.col("value").cast("string"), "user string, amount int, at long")
        parsed = self.load(kind).select(rows.alias("row"))
        counted = parsed.groupBy(f.window(f.timestamp_seconds("row.at"), "1 minute"), "row.user").count()
        return timed(lambda: noop(counted))

    def write(self, kind: str) -> float:
        rows = self.spark.range(0, self.rows, 1, PARTITIONS).selectExpr(
            "cast(id as string) as key",
            "concat('{\"user\":\"user-', id % 1000, '\",\"note\":\"', repeat('x', 60), '\"}') as value",
        )
        writer = rows.write.format(kind).options(**self.servers, topic=self.topic()).mode("append")
        return timed(writer.save)

    def batch(self, kind: str) -> float:
        """The same work in the session that each comes with.

        The connector has no session of its own. Spark's default manager of checkpoint files starts a process for each
        file that it renames, and Klamm's session has another.
        """
        manager = self.spark.conf.get(CHECKPOINT_FILES)
        if kind == "kafka":
            self.spark.conf.unset(CHECKPOINT_FILES)
        try:
            return self.batch_alike(kind)
        finally:
            self.spark.conf.set(CHECKPOINT_FILES, manager)

    def batch_alike(self, kind: str) -> float:
        """The median over micro-batches of a few rows each, in seconds; the first ones warm up."""
        limits = {"maxOffsetsPerTrigger": str(SMALL_ROWS), "startingOffsets": "earliest"}
        ending = {"subscribe": self.small}
        self._count += 1
        query = (
            self.spark.readStream.format(kind)
            .options(**self.servers, **limits, **ending)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(self.folder / f"checkpoint-{self._count}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        progress = [batch for batch in query.recentProgress if batch.numInputRows]
        took = [batch.durationMs["triggerExecution"] for batch in progress]
        return statistics.median(took[5:]) / 1000

    def fill_small(self) -> None:
        self.small = self.topic()
        with Producer(bootstrap_servers=self.broker.bootstrap) as producer:
            for row in range(SMALL_BATCHES * SMALL_ROWS):
                producer.send(self.small, b"x" * 100, partition=row % PARTITIONS)

    def costs(self) -> Costs:
        jvm = python = 0.0
        for process in psutil.Process().children(recursive=True):
            try:
                times, name = process.cpu_times(), process.name()
            except psutil.Error:
                continue
            if process.pid == self.broker.process.pid or self._under_broker(process):
                continue
            reaped = times.children_user + times.children_system
            if "java" in name:
                jvm += times.user + times.system
                python += reaped
            else:
                python += times.user + times.system + reaped
        return Costs(jvm, python, machine.cpu_seconds(self.broker.process.pid))

    def _under_broker(self, process: psutil.Process) -> bool:
        return any(parent.pid == self.broker.process.pid for parent in process.parents())


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(bench: Bench, work: Work, repeats: int) -> dict[str, Any]:
    """Both formats by turns, one round to warm up; medians."""
    runs: dict[str, list[tuple[float, Costs]]] = {kind: [] for kind in FORMATS}
    for turn in range(repeats + 1):
        for kind in FORMATS:
            before = bench.costs()
            took_s = getattr(bench, work.name)(kind)
            spent = Costs(*(after - first for after, first in zip(bench.costs(), before, strict=True)))
            if turn:
                runs[kind].append((took_s, spent))
    millions = bench.rows / 1e6
    result: dict[str, Any] = {"work": work.name, "title": work.title, "reach": work.reach}
    for kind, kind_runs in runs.items():
        took_s = statistics.median(run[0] for run in kind_runs)
        result[kind] = {"took_s": round(took_s, 4), "runs_s": [round(run[0], 4) for run in kind_runs]}
        if not work.is_time:
            result[kind]["rows_per_s"] = round(bench.rows / took_s)
            for part in Costs._fields:
                spent_s = statistics.median(getattr(run[1], part) for run in kind_runs)
                result[kind][f"{part}_cpu_s_per_million"] = round(spent_s / millions, 2)
    ratio = result["kafka"]["took_s"] / result["klamm"]["took_s"]
    result["ratio"] = round(1 / ratio if work.is_time else ratio, 2)
    result["pass"] = work.is_reached(result["ratio"])
    return result


def show(result: dict[str, Any]) -> None:
    print(f"\n{result['title']}: {result['ratio']} (reach {result['reach']}) {'ok' if result['pass'] else 'MISSED'}")
    for kind in FORMATS:
        costs_of_kind = result[kind]
        if "rows_per_s" not in costs_of_kind:
            print(f"  {kind:6} {costs_of_kind['took_s'] * 1000:8.0f} ms")
        else:
            costs = ", ".join(f"{part} {costs_of_kind[f'{part}_cpu_s_per_million']:.2f}" for part in Costs._fields)
            print(f"  {kind:6} {costs_of_kind['rows_per_s']:10,} rows/s; CPU s per million rows: {costs}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--partitions", type=int, default=WIDE_PARTITIONS, help="of the topic of many partitions")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--broker", choices=sorted(KINDS), default="klamm")
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("--only", help="works whose name contains one of these, with commas")
    options = parser.parse_args()
    try:
        toolchain.require("mvn", "java", what="benchmarks.spark")
        jars = toolchain.spark_jars()
    except toolchain.ToolMissing as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 1
    chosen = [work for work in WORKS if not options.only or any(word in work.name for word in options.only.split(","))]
    rows = []
    with tempfile.TemporaryDirectory(prefix="klamm-bench-") as folder:
        broker = KINDS[options.broker](Path(folder) / "broker", heap_mb=1024)
        spark = session(
            "bench",
            master="local[2]",
            progress=False,
            config={
                "spark.jars": ",".join(map(str, jars)),
                "spark.ui.enabled": False,
                "spark.driver.host": "127.0.0.1",
                "spark.driver.memory": "2g",
                "spark.sql.shuffle.partitions": 2,
                "spark.sql.warehouse.dir": f"{folder}/warehouse",
                "spark.log.level": "OFF",
            },
        )
        try:
            broker.start()
            bench = Bench(spark, broker, options.rows, Path(folder))
            print(f"filling a topic with {options.rows:,} rows", flush=True)
            bench.fill()
            bench.fill_small()
            if any(work.name == "wide" for work in chosen):
                bench.fill_wide(options.partitions)
            for work in chosen:
                rows.append(measure(bench, work, options.repeats))
                show(rows[-1])
            bench.admin.close()
        finally:
            spark.stop()
            broker.close()
    is_complete = len(chosen) == len(WORKS)
    if is_complete and not options.no_write:
        report = {
            "machine": machine.facts(),
            "broker": options.broker,
            "rows": options.rows,
            "partitions": options.partitions,
            "works": rows,
        }
        RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(row["pass"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
