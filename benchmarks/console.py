"""Pages of the console over a fake cluster of 10,000 topics: time to content, first paint, resident memory.

    python -m benchmarks.console [--topics N] [--groups N] [--requests N] [--no-browser]

The console runs in a process of its own, over a broker without load; what it collected there is replaced by a sample of
the size asked for. Each page is requested with other searches, orders and pages each time, and read to its end. First
paint is Chromium's, each time with an empty cache. Writes results/console.json.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil

import klamm.testing
from klamm.cli.node_runner import set_log_level
from klamm.console.clusters import ConsoleCluster
from klamm.console.core.samples import BrokerSample, ClusterSample, GroupSample, PartitionSample, TopicSample
from klamm.console.service import ConsoleConfig, ConsoleService
from klamm.http.binding import bind
from klamm.http.server import ServedApp, serve
from klamm.model.ids import TopicPartition

RESULTS = Path(__file__).parent / "results" / "console.json"
PARTITIONS = 10
BROKERS = 12
PAINTS = 5
WORDS = ("order", "pay", "42", "user", "ship", "99", "audit")


def make_sample(topics: int, groups: int, time_ms: int) -> ClusterSample:
    """Return a cluster in which every topic has ten partitions, and every group reads one topic."""
    chance = random.Random(7)
    names = [f"{chance.choice(('orders', 'payments', 'users', 'shipments'))}-{i:05}" for i in range(topics)]
    made = {}
    for name in names:
        partitions = []
        for index in range(PARTITIONS):
            replicas = tuple(chance.sample(range(1, BROKERS + 1), 3))
            end = chance.randrange(10_000_000)
            isr = replicas if chance.random() > 0.0001 else replicas[:2]
            partitions.append(PartitionSample(index, replicas[0], replicas, isr, 0, end, end * 100))
        made[name] = TopicSample(name, False, tuple(partitions), sum(p.end or 0 for p in partitions) * 300)
    committed = {}
    for i in range(groups):
        topic = made[names[i % topics]]
        offsets = {
            TopicPartition(topic.name, p.index): max((p.end or 0) - chance.randrange(1000), 0) for p in topic.partitions
        }
        name = f"group-{i:05}"
        state = chance.choice(("Stable", "Empty"))
        committed[name] = GroupSample(name, "classic", "consumer", state, 1, offsets, time_ms)
    brokers = tuple(BrokerSample(i, "127.0.0.1", 9090 + i) for i in range(1, BROKERS + 1))
    rates = {name: chance.random() * 1000 for name in names}
    return ClusterSample(time_ms, "fake", 1, brokers, made, committed, rates, rates, collected_s=1.0)


async def run_console(bootstrap: str, topics: int, groups: int) -> None:
    """Serve until standard input ends."""
    set_log_level("warning")
    cluster = ConsoleCluster("fake", bootstrap)
    service = ConsoleService(ConsoleConfig((cluster,), interval_s=86_400))
    listening = bind("127.0.0.1", 0)
    stopping, ready = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve([ServedApp(service.app, service, listening)], ready.set, stopping))
    await ready.wait()
    # After the first collection, which would take the place of the sample.
    await service.refresh("fake")
    (link,) = service.links
    link.publish(make_sample(topics, groups, time.time_ns() // 1_000_000))
    print(listening.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    stopping.set()
    await serving


@contextmanager
def serving_console(topics: int, groups: int) -> Iterator[tuple[str, int]]:
    """A console in a process of its own: its address and process id."""
    with klamm.testing.InProcessBroker() as broker:
        command = [sys.executable, "-m", "benchmarks.console", "--serve", broker.bootstrap]
        command += ["--topics", str(topics), "--groups", str(groups)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield f"http://127.0.0.1:{int(process.stdout.readline())}/c/fake", process.pid
            finally:
                process.stdin.close()


def pages(topics: int, groups: int) -> dict[str, Callable[[random.Random], str]]:
    """The pages, each as a function that returns another address of it."""
    last = max(topics // 50, 1)

    def topic_page(chance: random.Random) -> str:
        sort = chance.choice(("name", "-size", "rate", "-records"))
        return f"/topics?page={chance.randint(1, last)}&sort={sort}"

    return {
        "overview": lambda _: "",
        "topics, any order and page": topic_page,
        "topics, search": lambda chance: f"/topics?q={chance.choice(WORDS)}",
        "groups, any page": lambda chance: f"/groups?page={chance.randint(1, max(groups // 50, 1))}",
        "groups, by lag": lambda _: "/groups?sort=-lag",
        "groups, search": lambda chance: f"/groups?q={chance.choice(WORDS)}",
        "brokers": lambda _: "/brokers",
    }


def measure_page(
    client: httpx2.Client, base: str, page: Callable[[random.Random], str], requests: int
) -> dict[str, float]:
    """Request a page again and again."""
    chance, times, sizes = random.Random(11), [], []
    for _ in range(requests):
        began = time.perf_counter()
        response = client.get(base + page(chance))
        times.append((time.perf_counter() - began) * 1000)
        response.raise_for_status()
        sizes.append(int(response.headers.get("content-length", len(response.content))))
    return {
        "p50_ms": round(statistics.median(times), 1),
        "p95_ms": round(statistics.quantiles(times, n=20)[-1], 1),
        "max_ms": round(max(times), 1),
        "kb": round(statistics.median(sizes) / 1000, 1),
    }


def measure_paints(base: str, paths: dict[str, str]) -> dict[str, float]:
    """Return the median first contentful paint of pages in Chromium."""
    from playwright.sync_api import sync_playwright

    from tools.browser import find_browser

    path, paints = find_browser(), {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, target in paths.items():
            times = []
            for _ in range(PAINTS):
                context = browser.new_context()
                page = context.new_page()
                page.goto(base + target, wait_until="load")
                entry = page.wait_for_function("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
                times.append(float(entry.json_value()))
                context.close()
            paints[name] = round(statistics.median(times), 1)
        browser.close()
    return paints


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=15_000)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument("--serve", metavar="BOOTSTRAP", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(run_console(arguments.serve, arguments.topics, arguments.groups))
        return 0
    size = {"topics": arguments.topics, "partitions": arguments.topics * PARTITIONS, "groups": arguments.groups}
    results: dict[str, Any] = {**size, "cores": os.cpu_count(), "pages": {}}
    with serving_console(arguments.topics, arguments.groups) as (base, pid):
        with httpx2.Client(timeout=60, headers={"Accept-Encoding": "gzip"}) as client:
            for name, page in pages(arguments.topics, arguments.groups).items():
                measure_page(client, base, page, 3)
                results["pages"][name] = measure_page(client, base, page, arguments.requests)
                print(f"{name:28} {results['pages'][name]}", flush=True)
        results["rss_mb"] = round(psutil.Process(pid).memory_info().rss / 1e6, 1)
        print(f"resident memory {results['rss_mb']} MB", flush=True)
        if not arguments.no_browser:
            results["first_paint_ms"] = measure_paints(base, {"overview": "", "topics": "/topics", "groups": "/groups"})
            print(f"first paint {results['first_paint_ms']}", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
