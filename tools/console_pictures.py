# ruff: noqa: INP001, T201, S603 - a script, which prints and runs klamm
"""Writes pictures of every page of the console to docs/images/console, in light and dark.

    python tools/console_pictures.py [SECONDS]

Three nodes, a registry and groups with members, under traffic. Needs the extras `console`, `registry` and `test`, and
Chromium. Records, groups and rates are real; the hours before in the charts and the status of the pipeline are made
up, so that a run takes a minute.
"""

import base64
import contextlib
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx2
from playwright.sync_api import Page, sync_playwright

from klamm.console.history import (
    BYTE_RATE,
    LAG,
    RATE,
    SampleHistory,
    group_age_series,
    group_series,
    topic_series,
)
from klamm.testing import Broker, Cluster
from tools.browser import find_browser
from tools.console_sample import CONFIG, DRINKS, PAGES, fill_cluster, running_pipeline

IMAGES = Path(__file__).parents[1] / "docs" / "images" / "console"
SIZE = {"width": 1280, "height": 800}
TALLEST = 1200
"""Pixels: longer pages are cut."""
GROUPS = {"shop-billing": "orders", "shop-fraud": "payments", "shop-warehouse": "totals"}
TRAFFIC_S = 40.0
STEP_S = 0.5
STOP_S = 30
DAY_MINUTES = 24 * 60
NAME = "cluster"


def main() -> int:
    """Write all pictures."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else TRAFFIC_S
    IMAGES.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["XDG_DATA_HOME"] = folder
        cluster = stack.enter_context(Cluster(3, config=CONFIG))
        registry = stack.enter_context(serving("registry", cluster.bootstrap))
        fill_cluster(cluster, registry, replicas=3)
        stack.enter_context(running_pipeline(cluster, time.time_ns() // 1_000_000))
        write_history(folder)
        stopping = threading.Event()
        traffic = threading.Thread(target=write_records, args=(cluster, stopping))
        # Before the console: its first samples should show what the hours before do.
        traffic.start()
        stack.callback(traffic.join)
        stack.callback(stopping.set)
        config = Path(folder, "console.toml")
        config.write_text('[audit]\ntopic = "console-audit"\n')
        console = stack.enter_context(
            serving("console", cluster.bootstrap, "--data", folder, "--registry", registry, "--config", str(config))
        )
        stack.enter_context(open_transaction(cluster))
        make_changes(console)
        print(f"== {seconds:g} seconds of traffic", flush=True)
        time.sleep(seconds)
        # While it goes on: pages show the rates of the last seconds.
        take_pictures(f"{console}/c/{NAME}")
    return 0


@contextlib.contextmanager
def serving(service: str, bootstrap: str, *options: str) -> Iterator[str]:
    """Run a service of klamm on a free port; yields its address."""
    command = [sys.executable, "-m", "klamm", service, "-b", bootstrap, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().partition(" ready on ")[2].partition(",")[0].strip()
        finally:
            process.terminate()
            process.wait(STOP_S)


def write_history(folder: str) -> None:
    """Write a day of samples: load by the hour, with a little chance."""
    chance = random.Random(7)  # noqa: S311 - the same picture each time
    history = SampleHistory(os.path.join(folder, "console.sqlite"))
    now_ms = time.time_ns() // 1_000_000
    lag = 400.0
    for minute in range(DAY_MINUTES, -1, -1):
        rate = 220 + 90 * math.sin(minute / 37) + 40 * math.sin(minute / 7) + chance.uniform(-15, 15)
        lag = max(lag * 0.9 + chance.uniform(-60, 130), 0)
        shares = {"orders": 0.6, "payments": 0.37, "totals": 0.03}
        values = {RATE: rate, BYTE_RATE: rate * 70, LAG: lag, group_series("billing"): lag * 0.7}
        values[group_age_series("billing")] = lag / 40
        values |= {topic_series(name): rate * share for name, share in shares.items()}
        history.write(NAME, now_ms - minute * 60_000, values)
    history.close()


@contextlib.contextmanager
def open_transaction(broker: Broker) -> Iterator[None]:
    """A transaction that stays open."""
    with broker.producer(transactional_id="transfers") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("copies", b"open").result()
        yield
        producer.abort_transaction()


def make_changes(console: str) -> None:
    """Change something by forms, so that the audit and the history of settings have rows."""
    with httpx2.Client(base_url=f"{console}/c/{NAME}", follow_redirects=True, timeout=60) as client:
        token = client.get("/new-topic").text.partition('name="_token" value="')[2].partition('"')[0]
        forms = {
            "/topics/copies/produce": {"value": '{"written": "by hand"}'},
            "/topics/orders/settings": {"setting": "retention.ms", "value": "7d"},
            "/new-topic": {"name": "returns", "partitions": "6", "replicas": "3"},
        }
        for path, fields in forms.items():
            client.post(path, data={"_token": token, **fields}).raise_for_status()
        client.get("/audit")


def write_records(broker: Broker, stopping: threading.Event) -> None:
    """Write orders and what follows from them until it is stopped; groups read behind it."""
    chance = random.Random(7)  # noqa: S311 - the same picture each time
    number = 1000
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(broker.producer())
        members = [stack.enter_context(broker.consumer(topic, group_id=group)) for group, topic in GROUPS.items()]
        while not stopping.wait(STEP_S):
            for _ in range(chance.randint(60, 160)):
                number += 1
                order = {"order": number, "drink": chance.choice(DRINKS), "total": round(chance.uniform(2, 240), 2)}
                producer.send("orders", json.dumps(order).encode(), f"customer-{number % 997}".encode())
            producer.send("totals", json.dumps({"order": number}).encode(), str(number).encode())
            producer.flush()
            for member in members:
                member.poll(0.05)
                if chance.random() < 0.5:
                    member.commit()


def take_pictures(address: str) -> None:
    """Write every page in both schemes."""
    # Before the other: Playwright runs once in a process.
    browser_path = find_browser()
    with sync_playwright() as playwright:
        # A container has no user namespaces for Chromium's sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport=SIZE, color_scheme=scheme, device_scale_factor=1)
            view = context.new_page()
            for name, page in PAGES.items():
                view.goto(address + page.path, wait_until="load")
                write_picture(view, IMAGES / f"{name}-{scheme}.webp")
            context.close()
        browser.close()
    pictures = list(IMAGES.iterdir())
    print(f"== {len(pictures)} pictures, {sum(picture.stat().st_size for picture in pictures) / 1e6:.1f} MB")


def write_picture(view: Page, path: Path) -> None:
    """Write the page, or its beginning, as WebP: a fifth of a PNG."""
    height = min(max(view.evaluate("document.documentElement.scrollHeight"), SIZE["height"]), TALLEST)
    view.set_viewport_size({**SIZE, "height": height})
    session = view.context.new_cdp_session(view)
    picture = session.send("Page.captureScreenshot", {"format": "webp", "quality": 82})
    session.detach()
    path.write_bytes(base64.b64decode(picture["data"]))
    view.set_viewport_size(SIZE)
    print(f"== {os.path.relpath(path)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
