"""The console over a fake cluster of 10,000 topics: time to content, first paint, page size, resident memory.

    python -m benchmarks.console [--topics N] [--groups N] [--requests N] [--no-browser]

The console runs in a process of its own with a day of history, and collects the cluster of `fake_cluster.py` through
its client, again and again while pages are requested. Each page is requested with other searches, orders and pages each
time, and read to its end. First paint is Chromium's, each time with an empty cache. Resident memory is the highest from
the start to the end. Writes results/console.json; exits with 1 when a limit is missed.
"""

import argparse
import array
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.fake_cluster import PARTITIONS, FakeAddresses, FakeCluster, serving_fake_cluster
from klamm.cli.node_runner import set_log_level
from klamm.console import collector
from klamm.console.clusters import ConsoleCluster
from klamm.console.history import BYTE_RATE, HOUR_MS, LAG, RATE, SampleHistory, group_series, topic_series
from klamm.console.service import ConsoleConfig, ConsoleService
from klamm.http.binding import bind
from klamm.http.server import ServedApp, serve

RESULTS = Path(__file__).parent / "results" / "console.json"
CLUSTER = "fake"
HISTORY_HOURS = 24
COLLECTIONS = 4
PAINTS = 5
WORDS = ("order", "pay", "42", "user", "ship", "99", "audit")
CONTENT_MS_MAX = 500
PAINT_MS_MAX = 300
PAGE_KB_MAX = 200
RSS_MB_MAX = 150
FIRST_PAINT = """() => new Promise(resolve => {
  const report = list => {
    const paint = list.getEntriesByName('first-contentful-paint')[0];
    if (paint) resolve(paint.startTime);
  };
  new PerformanceObserver(report).observe({type: 'paint', buffered: true});
})"""
"""Not by wait_for_function: that evaluates a text in the page, which the console's Content-Security-Policy forbids."""

Address = Callable[[random.Random], str]


@dataclass(frozen=True, slots=True)
class RunningConsole:
    """The address of the cluster's pages, and the process."""

    base: str
    pid: int

    def peak_rss_mb(self) -> float:
        """The most memory that was resident at a time."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        return round(int(line.split()[1]) * 1024 / 1e6, 1)


def fill_history(path: str, cluster: FakeCluster, now_ms: int, hours: int = HISTORY_HOURS) -> None:
    """Write the samples of a day, or of some hours, of all topics and groups."""
    chance = random.Random(7)
    history = SampleHistory(path)
    names = [RATE, BYTE_RATE, LAG]
    names += [topic_series(topic.name) for topic in cluster.topics] + [group_series(name) for name in cluster.groups]
    last_hour = now_ms // HOUR_MS
    blobs = [array.array("f", (chance.random() * 1000 for _ in range(60))).tobytes() for _ in range(100)]
    with history.lock:
        database = history.connection
        database.execute("BEGIN")
        series = [(number, CLUSTER, name) for number, name in enumerate(names)]
        database.executemany("INSERT INTO series VALUES (?, ?, ?)", series)
        for number in range(len(names)):
            rows = [
                (number, hour, blobs[(number + hour) % 100]) for hour in range(last_hour - hours + 1, last_hour + 1)
            ]
            database.executemany("INSERT INTO hours VALUES (?, ?, ?)", rows)
        database.execute("COMMIT")
    history.close()


async def run_console(addresses: FakeAddresses, history_path: str, collections: int) -> None:
    """Collect the cluster, then serve until standard input ends."""
    set_log_level("warning")
    # All groups in one collection: those of a console that has run for some minutes.
    collector._GROUPS_PER_COLLECTION = sys.maxsize  # type: ignore[misc]
    cluster = ConsoleCluster(CLUSTER, addresses.bootstrap, registry_url=addresses.registry)
    service = ConsoleService(ConsoleConfig((cluster,), history_path=history_path))
    listening = bind("127.0.0.1", 0)
    stopping, ready = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve([ServedApp(service.app, service, listening)], ready.set, stopping))
    await ready.wait()
    for _ in range(collections):
        await service.refresh(CLUSTER)
    (link,) = service.links
    if link.sample is None or link.error or link.sample.partial:
        raise SystemExit(f"the cluster was not collected: {link.error or link.sample}")
    print(listening.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    stopping.set()
    await serving


@contextmanager
def serving_console(topics: int, groups: int, collections: int = COLLECTIONS) -> Iterator[RunningConsole]:
    """A console in a process of its own, over a fake cluster in another one."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serving_fake_cluster(topics, groups) as addresses,
    ):
        history_path = os.path.join(folder, "console.sqlite")
        fill_history(history_path, FakeCluster(topics, groups), time.time_ns() // 1_000_000)
        command = [sys.executable, "-m", "benchmarks.console", "--serve", addresses.bootstrap, addresses.registry]
        command += ["--history", history_path, "--collections", str(collections)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                port = process.stdout.readline().strip()
                if not port:
                    raise RuntimeError("the console ended before it served")
                yield RunningConsole(f"http://127.0.0.1:{port}/c/{CLUSTER}", process.pid)
            finally:
                process.stdin.close()


def list_pages(cluster: FakeCluster) -> dict[str, Address]:
    """The pages whose work could grow with the cluster, each as a function that returns another address of it."""
    topics, groups = len(cluster.topics), len(cluster.groups)

    def page_of(rows: int, chance: random.Random) -> int:
        return chance.randint(1, max(rows // 50, 1))

    def topic_page(chance: random.Random) -> str:
        sort = chance.choice(("name", "-size", "rate", "-records", "-lag"))
        return f"/topics?page={page_of(topics, chance)}&sort={sort}"

    return {
        "overview": lambda _: "",
        "overview, 24 hours": lambda _: "?span=24h",
        "topics, any order and page": topic_page,
        "topics, search": lambda chance: f"/topics?q={chance.choice(WORDS)}",
        "topics, 250 rows": lambda _: "/topics?size=250&sort=-rate",
        "topic": lambda chance: f"/topics/{chance.choice(cluster.topics).name}",
        "topic, groups": lambda chance: f"/topics/{chance.choice(cluster.topics).name}/groups",
        "groups, any page": lambda chance: f"/groups?page={page_of(groups, chance)}&sort=name",
        "groups, by lag": lambda _: "/groups?sort=-lag",
        "groups, search": lambda chance: f"/groups?q={chance.choice(WORDS)}",
        "groups, of a topic": lambda chance: f"/groups?topic={chance.choice(cluster.topics).name}",
        "brokers": lambda _: "/brokers",
        "reassignments": lambda _: "/reassignments",
        "transactions": lambda chance: f"/transactions?page={page_of(300, chance)}",
        "schemas, any page": lambda chance: f"/schemas?page={page_of(topics, chance)}",
        "schemas, search": lambda chance: f"/schemas?q={chance.choice(WORDS)}",
        "pipelines": lambda _: "/pipelines",
        "access": lambda chance: f"/access?principal=User:user-{chance.randrange(300)}",
        "audit": lambda _: "/audit",
        "new topic": lambda _: "/new-topic",
    }


def measure_page(client: httpx2.Client, base: str, page: Address, requests: int) -> dict[str, float]:
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


def measure_paints(base: str, pages: dict[str, Address]) -> dict[str, dict[str, float]]:
    """Return the median first contentful paint of pages in Chromium, and the bytes of the whole page."""
    from playwright.sync_api import sync_playwright

    from tools.browser import find_browser

    path, chance, paints = find_browser(), random.Random(13), {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, address in pages.items():
            times, size = [], 0
            for _ in range(PAINTS):
                context = browser.new_context()
                page = context.new_page()
                page.goto(base + address(chance), wait_until="load")
                times.append(float(page.evaluate(FIRST_PAINT)))
                size = page.evaluate(
                    "performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource'))"
                    ".reduce((sum, entry) => sum + entry.transferSize, 0)"
                )
                context.close()
            paints[name] = {"first_paint_ms": round(statistics.median(times), 1), "whole_kb": round(size / 1000, 1)}
            print(f"{name:28} {paints[name]}", flush=True)
        browser.close()
    return paints


def list_misses(results: dict[str, Any]) -> list[str]:
    """Return the limits that were missed."""
    misses = []
    for name, page in results["pages"].items():
        if page["p95_ms"] > CONTENT_MS_MAX:
            misses.append(f"{name}: content after {page['p95_ms']} ms (p95), at most {CONTENT_MS_MAX}")
    for name, paint in results.get("paints", {}).items():
        if paint["first_paint_ms"] > PAINT_MS_MAX:
            misses.append(f"{name}: first paint after {paint['first_paint_ms']} ms, at most {PAINT_MS_MAX}")
        if paint["whole_kb"] > PAGE_KB_MAX:
            misses.append(f"{name}: {paint['whole_kb']} KB, at most {PAGE_KB_MAX}")
    if results["peak_rss_mb"] > RSS_MB_MAX:
        misses.append(f"{results['peak_rss_mb']} MB resident, at most {RSS_MB_MAX}")
    return misses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=15_000)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--collections", type=int, default=COLLECTIONS)
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument("--serve", nargs=2, metavar=("BOOTSTRAP", "REGISTRY"), help=argparse.SUPPRESS)
    parser.add_argument("--history", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(run_console(FakeAddresses(*arguments.serve), arguments.history, arguments.collections))
        return 0
    size = {"topics": arguments.topics, "partitions": arguments.topics * PARTITIONS, "groups": arguments.groups}
    results: dict[str, Any] = {**size, "cores": os.cpu_count(), "pages": {}}
    pages = list_pages(FakeCluster(arguments.topics, arguments.groups))
    with serving_console(arguments.topics, arguments.groups, arguments.collections) as console:
        results["collected_rss_mb"] = console.peak_rss_mb()
        print(f"after {arguments.collections} collections {results['collected_rss_mb']} MB resident", flush=True)
        with httpx2.Client(timeout=60, headers={"Accept-Encoding": "gzip"}) as client:
            for name, page in pages.items():
                measure_page(client, console.base, page, 3)
                results["pages"][name] = measure_page(client, console.base, page, arguments.requests)
                print(f"{name:28} {results['pages'][name]}", flush=True)
        if not arguments.no_browser:
            results["paints"] = measure_paints(console.base, pages)
        results["peak_rss_mb"] = console.peak_rss_mb()
        print(f"at most {results['peak_rss_mb']} MB resident", flush=True)
    misses = list_misses(results)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({**results, "misses": misses}, indent=1) + "\n")
    for miss in misses:
        print(f"MISSED: {miss}", flush=True)
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
