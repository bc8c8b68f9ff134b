# ruff: noqa: INP001, T201, S603 - a script, which prints and runs klamm
"""Writes the pictures of the console to docs/images: a broker with traffic, in light and dark.

    python tools/console_pictures.py [SECONDS]

Needs the extras `console` and `test`, and Chromium. Records, groups and rates are real; the hours before in the charts
are made up, so that a run takes a minute.
"""

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
from pathlib import Path

from browser import find_browser
from playwright.sync_api import sync_playwright

from klamm.console.history import BYTE_RATE, LAG, RATE, SampleHistory, group_series, topic_series
from klamm.testing import InProcessBroker

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZE = {"width": 1280, "height": 800}
PAGES = {
    "overview": "",
    "messages": "/topics/orders/messages?where=value.total+%3E+100",
}
TOPICS = {"orders": 6, "payments": 6, "shipments": 3, "users": 3}
GROUPS = {"billing": "orders", "fraud": "payments", "warehouse": "shipments"}
DRINKS = ("espresso", "mate", "green tea", "cocoa")
TRAFFIC_S = 40.0
STEP_S = 0.5
STOP_S = 30
DAY_MINUTES = 24 * 60


def main() -> int:
    """Write all pictures."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else TRAFFIC_S
    IMAGES.mkdir(parents=True, exist_ok=True)
    with InProcessBroker() as broker, tempfile.TemporaryDirectory() as folder:
        with broker.admin() as admin:
            for name, partitions in TOPICS.items():
                admin.create_topic(name, num_partitions=partitions)
        write_history(folder)
        console, address = start_console(broker.bootstrap, folder)
        stopping = threading.Event()
        traffic = threading.Thread(target=write_records, args=(broker, stopping))
        traffic.start()
        try:
            print(f"== {seconds:g} seconds of traffic", flush=True)
            time.sleep(seconds)
            # While it goes on: pages show the rates of the last seconds.
            take_pictures(f"{address}/c/cluster")
        finally:
            stopping.set()
            traffic.join()
            console.terminate()
            console.wait(STOP_S)
    return 0


def write_history(folder: str) -> None:
    """Write a day of samples: load by the hour, with a little chance."""
    chance = random.Random(7)  # noqa: S311 - the same picture each time
    history = SampleHistory(os.path.join(folder, "console.sqlite"))
    now_ms = time.time_ns() // 1_000_000
    lag = 400.0
    for minute in range(DAY_MINUTES, -1, -1):
        rate = 220 + 90 * math.sin(minute / 37) + 40 * math.sin(minute / 7) + chance.uniform(-15, 15)
        lag = max(lag * 0.9 + chance.uniform(-60, 130), 0)
        shares = {"orders": 0.6, "payments": 0.37, "shipments": 0.03}
        values = {RATE: rate, BYTE_RATE: rate * 70, LAG: lag, group_series("billing"): lag * 0.7}
        values |= {topic_series(name): rate * share for name, share in shares.items()}
        history.write("cluster", now_ms - minute * 60_000, values)
    history.close()


def start_console(bootstrap: str, folder: str) -> tuple[subprocess.Popen[str], str]:
    """Start a console on a free port; return its process and address."""
    command = [sys.executable, "-m", "klamm", "console", "-b", bootstrap, "--port", "0", "--data", folder]
    console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert console.stdout is not None
    line = console.stdout.readline()
    return console, line.partition(" ready on ")[2].partition(",")[0]


def write_records(broker: InProcessBroker, stopping: threading.Event) -> None:
    """Write orders and what follows from them until it is stopped; groups read behind it."""
    chance = random.Random(7)  # noqa: S311 - the same picture each time
    number = 0
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(broker.producer())
        members = [stack.enter_context(broker.consumer(topic, group_id=group)) for group, topic in GROUPS.items()]
        while not stopping.wait(STEP_S):
            for _ in range(chance.randint(60, 160)):
                number += 1
                order = {"order": number, "drink": chance.choice(DRINKS), "total": round(chance.uniform(2, 240), 2)}
                producer.send("orders", json.dumps(order).encode(), f"customer-{number % 997}".encode())
                if chance.random() < 0.6:
                    payment = {"order": number, "paid": True}
                    producer.send("payments", json.dumps(payment).encode(), str(number).encode())
            producer.send("shipments", json.dumps({"order": number}).encode(), str(number).encode())
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
            page = context.new_page()
            for name, target in PAGES.items():
                page.goto(address + target, wait_until="load")
                picture = IMAGES / f"console-{name}-{scheme}.png"
                page.screenshot(path=picture)
                print(f"== {os.path.relpath(picture)}")
            context.close()
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
