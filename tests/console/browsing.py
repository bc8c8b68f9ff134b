"""Chromium for tests of the console, and a console with something on every page."""

import contextlib
import os
import shutil

import pytest
from playwright.sync_api import sync_playwright

from klamm.console.clusters import ConsoleCluster
from klamm.console.service import ConsoleConfig, now_ms
from klamm.console.settings import parse_settings
from klamm.testing import InProcessBroker, unique
from registry.conftest import running_registry
from tools.console_sample import CONFIG, fill_cluster, running_pipeline

from .served import ServedConsole

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LOGIN = """
[users.anna]
password = "$argon2id$v=19$m=65536,t=3,p=4$Y2hhbmdlbWVjaGFuZ2VtZQ$6bTzX9J0a3Qn7n2kQzqS5w0Jb0m3mC1c8m0m3T1cQ1k"
roles = ["admin"]
"""


@contextlib.contextmanager
def opened_browser():
    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, BROWSERS)), playwright.chromium.executable_path)
        if not os.path.exists(path):
            # No skip: a machine without a browser would lose these tests unseen.
            pytest.fail("the console is tested in Chromium: run tools/browser.py, as `make test` does, or install it")
        # A container has no user namespaces for Chromium's sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def filled_console(folder):
    """A console over a broker, a registry and a pipeline; the second cluster has the same broker."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("XDG_DATA_HOME", str(folder))
        broker = stack.enter_context(InProcessBroker(config=CONFIG))
        registry = stack.enter_context(
            running_registry(broker.bootstrap, unique("_schemas"), unique("schema-registry"))
        )
        fill_cluster(broker, registry.url)
        stack.enter_context(running_pipeline(broker, now_ms()))
        transfers = stack.enter_context(broker.producer(transactional_id="transfers"))
        transfers.init_transactions()
        transfers.begin_transaction()
        transfers.send("copies", b"open").result()
        clusters = tuple(
            ConsoleCluster(name, broker.bootstrap, registry_url=registry.url) for name in ("test", "other")
        )
        console = stack.enter_context(ServedConsole(ConsoleConfig(clusters, interval_s=600)))
        # Twice: rates are of two samples.
        for _ in range(2):
            console.collect("test")
        visit = console.visitor()
        visit.post("/c/test/topics/copies/produce", "/c/test/topics/copies/produce", value="by hand")
        visit.client.close()
        yield console
        transfers.abort_transaction()


@contextlib.contextmanager
def login_console():
    """A console with users, whose cluster nothing serves."""
    clusters = (ConsoleCluster("test", "127.0.0.1:9"),)
    with ServedConsole(ConsoleConfig(clusters, parse_settings(LOGIN), interval_s=600)) as console:
        yield console
