"""What metrics cost: a scrape of 10,000 partitions, clients beside it, and Produce with metrics and without.

Klamm only; each load runs nodes of its own. Ratios are of the node without metrics to the node with them.
"""

import http.client
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import NewTopic

from benchmarks import loaders
from benchmarks.loads import LIMIT_S, PARTITIONS, Bench, Load, Reach, Sample
from benchmarks.machine import cpu_seconds
from compat.brokers import free_port

TOPICS = 100
TOPICS_PER_REQUEST = 5
SCRAPES = 15
SCRAPE_MS_MAX = 100.0
ROUNDS = 7
REQUESTS = 60_000
QUICK, CALM, COST = "100 ms : scrape", "p99 alone : beside scrapes", "CPU off : on"


@contextmanager
def started(bench: Bench, *, metrics: bool) -> Iterator[tuple[Bench, int]]:
    """Start a node of its own; yields it with the port of its metrics, 0 without."""
    port = free_port() if metrics else 0
    overrides = {"log.segment.delete.delay.ms": "100"}
    if metrics:
        overrides["metrics.listeners"] = f"127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        node = bench.kind(Path(folder), heap_mb=1024, overrides=overrides)
        try:
            node.start()
            yield Bench(bench.kind, node, Path(folder), bench.cache, bench.scale), port
        finally:
            node.close()


def scrape(port: int) -> tuple[float, int]:
    """Return the milliseconds of one scrape, from the request to the last byte, and its bytes."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    began = time.perf_counter()
    try:
        client.request("GET", "/metrics")
        response = client.getresponse()
        body = response.read()
    finally:
        client.close()
    if response.status != 200:
        raise loaders.LoadFailed(f"/metrics answers {response.status}")
    return (time.perf_counter() - began) * 1000, len(body)


@contextmanager
def scraped(port: int, every_s: float) -> Iterator[None]:
    """Scrape again and again meanwhile, much more often than Prometheus does."""
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(every_s):
            scrape(port)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(LIMIT_S)


def scrape_partitions(bench: Bench) -> Sample:
    """Scrapes of a node with 10,000 partitions, and a producer's p99 alone and beside them."""
    partitions = max(TOPICS, bench.count(10_000)) // TOPICS
    with started(bench, metrics=True) as (node, port):
        for first in range(0, TOPICS, TOPICS_PER_REQUEST):
            topics = [NewTopic(f"many-{i}", partitions, 1) for i in range(first, first + TOPICS_PER_REQUEST)]
            for future in node.admin.create_topics(topics, request_timeout=120).values():
                future.result(180)
        topic = node.fresh_topic("raw")
        scrape(port)
        cpu = cpu_seconds(node.broker.pid)
        scrapes = [scrape(port) for _ in range(SCRAPES)]
        cpu = cpu_seconds(node.broker.pid) - cpu
        alone = _p99_us(node, topic)
        with scraped(port, 1.0):
            beside = _p99_us(node, topic)
        scrape_ms = statistics.median(ms for ms, _ in scrapes)
        return {
            "scrape ms": scrape_ms,
            "slowest scrape ms": max(ms for ms, _ in scrapes),
            "CPU ms/scrape": cpu / SCRAPES * 1000,
            "MB": scrapes[-1][1] / 1e6,
            "p99 us beside": beside,
            QUICK: SCRAPE_MS_MAX / scrape_ms,
            CALM: alone / beside,
        }


def _p99_us(node: Bench, topic: str) -> float:
    """The p99 of a producer with 1,000 requests a second."""
    what = (node.broker.port, topic, PARTITIONS, 1, 64, 100, 1, node.count(8000), LIMIT_S, 1000)
    return float(loaders.raw("produce", *what, timeout_s=LIMIT_S)["p99_us"])


def produce_on_off(bench: Bench) -> Sample:
    """One-record requests to a node with metrics that is scraped every second, and in turns to one without."""
    with started(bench, metrics=True) as (on, port), started(bench, metrics=False) as (off, _):
        topics = {node.broker.port: node.fresh_topic("raw") for node in (on, off)}
        costs: dict[int, list[float]] = {on.broker.port: [], off.broker.port: []}
        bench.cache.fill()
        # The first round warms both up.
        for number in range(1 + ROUNDS):
            # In turns, and each of them first as often as the other: the machine changes in the course of a minute.
            for node in (on, off) if number % 2 else (off, on):
                cost = _cost_us(node, topics[node.broker.port], port if node is on else 0)
                if number:
                    costs[node.broker.port].append(cost)
        cost_on, cost_off = (statistics.median(costs[node.broker.port]) for node in (on, off))
        return {"CPU us/request": cost_on, "CPU us/request off": cost_off, COST: cost_off / cost_on}


def _cost_us(node: Bench, topic: str, metrics_port: int) -> float:
    what = (node.broker.port, topic, PARTITIONS, 8, 1, 100, 1, node.count(REQUESTS), LIMIT_S, 0)
    before = cpu_seconds(node.broker.pid)
    if metrics_port:
        with scraped(metrics_port, 1.0):
            result = loaders.raw("produce", *what, timeout_s=LIMIT_S)
    else:
        result = loaders.raw("produce", *what, timeout_s=LIMIT_S)
    return (cpu_seconds(node.broker.pid) - before) / max(result["requests"], 1) * 1e6


METRICS: tuple[Load, ...] = (
    Load(
        "metrics-scrape",
        "metrics: a scrape of 10,000 partitions",
        scrape_partitions,
        (Reach("scrape ms"), Reach(QUICK, 1.0, own=True), Reach(CALM, own=True), Reach("CPU ms/scrape")),
        repeats=1,
        warm_ups=0,
        only="klamm",
    ),
    Load(
        "metrics-produce",
        "metrics: one-record requests with metrics and without",
        produce_on_off,
        (Reach(COST, 0.99, own=True), Reach("CPU us/request")),
        repeats=1,
        warm_ups=0,
        only="klamm",
    ),
)
