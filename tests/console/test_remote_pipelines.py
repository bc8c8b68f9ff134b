"""A pipeline on another machine, by the cluster alone: its page, its control, its dead letters. No Spark."""

import contextlib
import threading

import pytest

from klamm.pipeline.sql.cluster_control import ClusterControl, RunPlace
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.pipeline_registry import PipelineRegistry
from klamm.pipeline.sql.status import Home
from klamm.testing import unique

from .test_pipelines import WAIT_S, letter_headers, make_status, statement, values_of, wait_for_page

pytestmark = pytest.mark.timeout(180)


class RemoteRun:
    """A run whose folder the console does not know; it publishes to the cluster and answers requests from there."""

    def __init__(self, broker, folder, status):
        self.name = unique("bank")
        self.path = f"/c/test/pipelines/{self.name}"
        self.home = Home(str(folder))
        self.status = status
        self.received = []
        self.registry = PipelineRegistry({"bootstrap.servers": broker.bootstrap})
        self.registry.host = "host-7"
        self.identity = QueryIdentity(unique("id"), self.name, {}, {})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._answer, daemon=True)

    def __enter__(self):
        self._parts = contextlib.ExitStack()
        self.registry.ensure()
        self._parts.enter_context(self.home.hold_lock())
        run = self._parts.enter_context(self.registry.running(self.identity, self.home.path, pytest.fail))
        place = RunPlace(self.identity, run, self.home.path)
        self.control = self._parts.enter_context(ClusterControl(self.registry, place, self.home, lambda: self.status))
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join(WAIT_S)
        self.status = {**self.status, "state": "stopped"}
        self._parts.close()

    def _answer(self):
        while not self._ended.wait(0.02):
            for request in self.home.requests():
                self.received.append((str(request.action), request.query))
                refusal = "it is not paused" if request.action == "resume" else ""
                self.home.remove_request(request)
                self.status = {**self.status, "requests": {**self.status["requests"], request.id: refusal}}


@pytest.fixture
def hidden(tmp_path, monkeypatch):
    """The console's data folder; the run's is another one."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "console"))
    return tmp_path / "elsewhere"


def collect_until_listed(console, visit, run, text="running"):
    # The topic is made by the first run: a sample has to show it.
    console.collect()
    return wait_for_page(visit, run.path, text)


def test_a_remote_pipeline_is_shown_with_its_numbers_and_its_end(hidden, broker, console, visit):
    values = {"state": "running", "rows_per_s": 1234, "lag_records": 7, "late_rows": 3, "error": "boom", "error_ms": 1}
    status = make_status(graph=[statement("orders"), statement("totals", "orders")], totals=values)
    with RemoteRun(broker, hidden, status) as run:
        wait_for_status(run)
        page = collect_until_listed(console, visit, run, "1.2 k")
        assert 'class="graph"' in page
        assert "/topics/totals" in page
        assert f"host-7:{hidden}" in page
        assert "boom" in page
        assert "Stop" in page
        assert run.name in visit.get("/c/test/pipelines")
    page = wait_for_page(visit, run.path, "stopped")
    assert "Pause all" not in page
    # A page that was open when it ended still has the form.
    assert "does not run" in visit.post("/c/test/new-topic", run.path, action="stop")


def wait_for_status(run):
    """Wait until a first status was written, so that both topics exist."""
    ended = threading.Event()
    while run.control._published == ():
        assert not ended.wait(0.02)


def test_pause_restart_and_stop_go_through_the_cluster(hidden, broker, console, visit):
    with RemoteRun(broker, hidden, make_status(totals={"state": "running"})) as run:
        wait_for_status(run)
        collect_until_listed(console, visit, run, "Pause all")
        base = run.path
        assert f"Paused totals of {run.name}." in visit.post(base, base, action="pause", query="totals")
        assert f"Restarted {run.name}." in visit.post(base, base, action="restart")
        assert "it is not paused" in visit.post(base, base, action="resume")
        visit.post(base, base, 404, action="pause", query="absent")
        assert not run.home.stop_requested()
        assert "stops after its batches" in visit.post(base, base, action="stop")
        assert run.home.stop_requested()
    assert run.received == [("pause", "totals"), ("restart", None), ("resume", None)]
    audit = visit.get("/c/test/audit")
    assert "stop pipeline" in audit
    assert run.name in audit


def test_dead_letters_of_a_remote_pipeline_are_shown_and_sent_again(hidden, broker, console, visit):
    topic = unique("orders")
    with broker.admin() as admin, broker.producer() as producer:
        admin.create_topic(topic, num_partitions=1)
        admin.create_topic(f"{topic}.dead_letters", num_partitions=1)
        producer.send(f"{topic}.dead_letters", b"first", b"k", headers=letter_headers("orders", topic)).result()
    graph = [{**statement("orders"), "topic": topic, "dead_letters": f"{topic}.dead_letters"}]
    with RemoteRun(broker, hidden, make_status(graph=graph)) as run:
        wait_for_status(run)
        collect_until_listed(console, visit, run, "dead_letters")
        page = f"{run.path}/dead-letters/orders"
        assert "bad number" in visit.get(page)
        assert "They were 1 record." in visit.post(page, page)
    assert values_of(broker, topic) == [b"first"]


def test_a_run_that_was_killed_is_shown_as_gone(hidden, broker, console, visit):
    run = RemoteRun(broker, hidden, make_status(totals={"state": "running"}))
    with run:
        wait_for_status(run)
        collect_until_listed(console, visit, run, "Pause all")
        # A killed process writes no last status: the one that is there says that it runs.
        run.control._read_status = dict
    page = wait_for_page(visit, run.path, "gone")
    assert "Pause all" not in page
