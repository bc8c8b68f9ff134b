"""Every change has a record in the audit, however it ends."""

import asyncio
import errno
import threading
from functools import partial

import pytest

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.errors import KafkaTimeoutError
from klamm.console.app.application import explain_error
from klamm.console.app.requests import ConsoleRequest
from klamm.console.clusters import ClusterLink, ConsoleCluster
from klamm.http.app import REQUEST_S
from klamm.testing import unique

WAIT_S = 60


def list_outcomes(console, name):
    entries = console.service.app.parts.audit.list_entries("test")
    return [(entry.action, entry.outcome, entry.detail.get("error", "")) for entry in entries if entry.resource == name]


def replace_creation(monkeypatch, create):
    """Let `create` answer requests for topics, except for the topic of the audit."""
    create_topic = AsyncAdmin.create_topic

    async def create_other(admin, name, *arguments, **options):
        answer = create_topic if name == "console-audit" else create
        return await answer(admin, name, *arguments, **options)

    monkeypatch.setattr(AsyncAdmin, "create_topic", create_other)


@pytest.mark.parametrize(
    ("error", "status", "outcome", "words"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/state/x"), 409, "failed", "A file of the console"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), 409, "failed", "The cluster cannot be reached"),
        (KafkaTimeoutError("no answer within 10 s"), 409, "unknown", "Whether it was done is not known: no answer"),
        (ZeroDivisionError("a bug"), 500, "failed", "ZeroDivisionError"),
    ],
)
def test_every_error_of_a_change_is_audited(console, visit, monkeypatch, error, status, outcome, words):
    async def fail(*_, **__):
        raise error

    replace_creation(monkeypatch, fail)
    name = unique("audited")
    page = visit.post("/c/test/new-topic", "/c/test/new-topic", status, name=name)
    ((action, recorded, text),) = list_outcomes(console, name)
    assert (action, recorded) == ("create topic", outcome)
    assert words in text
    if status == 409:
        assert words in page


def test_a_change_that_is_not_answered_in_time_is_unknown(console, visit, monkeypatch):
    async def wait_for_ever(*_, **__):
        await asyncio.Event().wait()

    replace_creation(monkeypatch, wait_for_ever)
    monkeypatch.setattr(console.service.app, "change_s", 0.1)
    name = unique("unanswered")
    page = visit.post("/c/test/new-topic", "/c/test/new-topic", 409, name=name)
    assert "Whether it was done is not known: no answer within 0.1 seconds" in page
    assert [outcome for _, outcome, _ in list_outcomes(console, name)] == ["unknown"]


def test_a_change_whose_request_is_given_up_is_finished_and_audited(console, monkeypatch):
    began, answered = threading.Event(), threading.Event()

    async def create_late(*_, **__):
        began.set()
        await asyncio.to_thread(answered.wait, WAIT_S)

    replace_creation(monkeypatch, create_late)
    app, name = console.service.app, unique("given-up")
    changing = []

    async def change_and_give_up():
        task = asyncio.create_task(visit_form(app, name))
        await asyncio.to_thread(began.wait, WAIT_S)
        task.cancel()
        changing.extend(app._changes)
        answered.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait(changing)

    asyncio.run_coroutine_threadsafe(change_and_give_up(), console._loop).result(WAIT_S)
    assert [outcome for _, outcome, _ in list_outcomes(console, name)] == ["done"]


async def visit_form(app, name):
    """Make a change as the endpoint of a form does."""
    request = ConsoleRequest("POST", "/", {}, {}, b"", {}, "127.0.0.1", None)
    request.link = app.parts.links["test"]
    request.session = app.parts.sessions.create(app.parts.settings.anonymous())
    admin = await request.link.admin()
    await app.change(request, "create topic", name, partial(admin.create_topic, name), done="Created.")


def test_clients_give_up_before_the_request_of_a_page():
    link = ClusterLink(ConsoleCluster("test", "127.0.0.1:9"))
    assert link.client_settings("producer")["delivery.timeout.ms"] < REQUEST_S * 1000 / 2
    assert link.client_settings("admin")["default.api.timeout.ms"] < REQUEST_S * 1000 / 2


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file", "/state/x"), 500, "A file of the console"),
        (OSError(errno.ENOSPC, "No space left on device"), 500, "A disk of the console"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), 502, "The cluster cannot be reached"),
    ],
)
def test_an_error_of_a_file_is_not_one_of_the_cluster(error, status, words):
    refusal = explain_error(error)
    assert refusal.status == status
    assert words in refusal.message
