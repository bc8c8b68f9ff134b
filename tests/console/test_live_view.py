"""A live view ends with its session and its rights, and after a time."""

import contextlib
import json

import pytest
from argon2 import PasswordHasher
from playwright.sync_api import expect

from klamm.console.clusters import ConsoleCluster
from klamm.console.service import ConsoleConfig
from klamm.console.settings import parse_settings

from .browsing import opened_browser
from .served import ServedConsole
from .test_pages import make_topic

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
SETTINGS = f"""
[users.anna]
password = "{CHEAP.hash("correct horse")}"
roles = ["viewer"]
"""


@pytest.fixture(scope="module")
def guarded(broker):
    clusters = (ConsoleCluster("test", broker.bootstrap),)
    with ServedConsole(ConsoleConfig(clusters, parse_settings(SETTINGS), interval_s=600)) as console:
        console.collect()
        yield console


@pytest.fixture
def anna(guarded):
    visit = guarded.visitor()
    visit.post("/login", "/login", name="anna", password="correct horse")
    yield visit
    visit.client.close()


@contextlib.contextmanager
def live_events(visit, topic):
    """Name and data of the events of a live view, from the one that says that it has begun."""
    with visit.client.stream("GET", f"/c/test/topics/{topic}/messages/live") as response:
        yield read_events(response.iter_lines())


def read_events(lines):
    name = "message"
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)
            name = "message"


def test_a_logout_ends_a_live_view(broker, guarded, anna):
    topic = make_topic(broker, guarded, partitions=1)
    with live_events(anna, topic) as events:
        assert next(events)[1]["count"] == 0
        anna.post("/c/test", "/logout")
        with broker.producer() as producer:
            producer.send(topic, b"after the logout").result()
        rest = list(events)
    assert rest[-1] == ("end", "The session has ended; load the page again.")
    assert "after the logout" not in str(rest)


def test_a_right_that_is_taken_ends_a_live_view(broker, guarded, anna, monkeypatch):
    topic = make_topic(broker, guarded, partitions=1)
    with live_events(anna, topic) as events:
        next(events)
        monkeypatch.setattr("klamm.console.core.roles.ConsoleRole.allows", lambda *_: False)
        assert list(events)[-1] == ("end", "The right to read this topic has ended.")


def test_a_live_view_does_not_keep_its_session_alive(broker, guarded, anna, monkeypatch):
    topic = make_topic(broker, guarded, partitions=1)
    sessions = guarded.service.app.parts.sessions
    with live_events(anna, topic) as events:
        next(events)
        monkeypatch.setattr(sessions, "_idle_s", 0.0)
        assert list(events)[-1][0] == "end"


def test_a_live_view_ends_after_a_time(broker, guarded, anna, monkeypatch):
    topic = make_topic(broker, guarded, partitions=1)
    monkeypatch.setattr("klamm.console.app.pages.messages.LIVE_MS_MAX", 0)
    with live_events(anna, topic) as events:
        assert list(events) == [("end", "A live view ends after 0 minutes. Start it again.")]


def test_the_page_says_why_its_live_view_ended(broker, console, monkeypatch):
    topic = make_topic(broker, console, partitions=1)
    monkeypatch.setattr("klamm.console.app.pages.messages.LIVE_MS_MAX", 0)
    with opened_browser() as browser:
        view = browser.new_page()
        view.set_default_timeout(60_000)
        view.goto(f"{console.url}/c/test/topics/{topic}/messages")
        view.get_by_role("button", name="Live").click()
        expect(view.locator("#scan")).to_contain_text("A live view ends after 0 minutes.", timeout=60_000)
        expect(view.locator("button.live")).to_have_attribute("aria-pressed", "false")
