"""The status of a run on the cluster, and requests from there. A run is played by the test; the broker is real."""

import contextlib
import logging
import time

import pytest

from harness.access import SASL_LISTENER, secured_node
from klamm.client import Admin, TopicPartition
from klamm.client.admin.types import ConfigResource
from klamm.pipeline.sql import cluster_control
from klamm.pipeline.sql.cluster_control import ClusterControl, RunPlace
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.published_status import (
    REQUEST_AGE_MAX_MS,
    REQUESTS_TOPIC,
    STATUS_TOPIC,
    PipelineRequest,
    PublishedStatus,
)
from klamm.pipeline.sql.pipeline_registry import PipelineRegistry
from klamm.pipeline.sql.status import ControlAction, Home
from klamm.testing import unique

pytestmark = pytest.mark.timeout(120)
WAIT_S = 60


class PlayedRun:
    """The status of a run, and its folder, whose requests it answers when it is asked to."""

    def __init__(self, folder):
        self.home = Home(str(folder))
        self.status = {
            "state": "running",
            "updated_ms": 1,
            "error": None,
            "graph": [{"name": "orders", "kind": "stream", "reads": [], "topic": "orders"}],
            "queries": {"totals": {"state": "running", "rows_per_s": 5}},
            "requests": {},
        }

    def read_status(self):
        return self.status

    def answer(self, text=""):
        """Take the requests that wait in the folder, as a supervisor does."""
        requests = self.home.requests()
        for request in requests:
            self.home.remove_request(request)
        answers = {request.id: text for request in requests}
        self.status = {**self.status, "requests": {**self.status["requests"], **answers}}
        return [(request.action, request.query) for request in requests]


def wait_until(condition):
    deadline_s = time.monotonic() + WAIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return value


class Observer:
    """Reads statuses from the cluster and writes requests, without the folder of the run."""

    def __init__(self, broker, name):
        self._broker = broker
        self._name = name.encode()

    def statuses(self):
        """All statuses of the pipeline."""
        with self._broker.admin() as admin:
            if STATUS_TOPIC not in {topic.name for topic in admin.list_topics(internal=True)}:
                return []
        with self._broker.consumer(enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
            where = TopicPartition(STATUS_TOPIC, 0)
            end = consumer.end_offsets([where])[where]
            consumer.assign([where])
            statuses = []
            while consumer.position(where) < end:
                records = consumer.poll(1.0)
                statuses += [PublishedStatus.decode(record.value) for record in records if record.key == self._name]
        return statuses

    def newest(self):
        return (self.statuses() or [None])[-1]

    def wait_for(self, condition):
        def check():
            status = self.newest()
            return status if status is not None and condition(status) else None

        return wait_until(check)

    def send(self, request):
        with self._broker.producer() as producer:
            producer.send(REQUESTS_TOPIC, request.encode(), self._name).result()


@pytest.fixture
def identity():
    return QueryIdentity(unique("id"), unique("name"), {}, {})


@pytest.fixture
def registry(klamm_broker):
    registry = PipelineRegistry({"bootstrap.servers": klamm_broker.bootstrap})
    registry.ensure()
    return registry


@pytest.fixture
def observer(klamm_broker, identity):
    return Observer(klamm_broker, identity.name)


@pytest.fixture
def played(tmp_path):
    return PlayedRun(tmp_path / "bank")


def now_ms():
    return time.time_ns() // 1_000_000


@contextlib.contextmanager
def publishing(registry, identity, played, fenced=pytest.fail):
    """Hold the lease of a run that publishes its status; returns the id of the run."""
    with (
        registry.running(identity, "/state/bank", fenced) as run,
        ClusterControl(registry, RunPlace(identity, run, "/state/bank"), played.home, played.read_status),
    ):
        yield run


def test_a_run_publishes_its_status_with_its_lease_and_its_end(registry, identity, observer, played):
    with publishing(registry, identity, played) as run:
        first = observer.wait_for(lambda status: status.takes_requests)
        assert (first.pipeline, first.run, first.folder) == (identity.id, run, "/state/bank")
        assert registry.lease(identity).run == run
        assert first.status["queries"]["totals"]["rows_per_s"] == 5
        assert first.status["graph"][0]["topic"] == "orders"
        played.status = {**played.status, "state": "stopped"}
    assert observer.newest().status["state"] == "stopped"
    assert not observer.newest().is_alive


def test_a_status_that_does_not_change_is_published_once(registry, identity, observer, played, monkeypatch):
    monkeypatch.setattr(cluster_control, "PUBLISH_S", 0.0)
    with publishing(registry, identity, played) as run:
        observer.wait_for(bool)
        for clock in range(20):
            played.status = {**played.status, "updated_ms": clock}
            # A request that is carried out shows that the thread has looked at the status since.
            observer.send(PipelineRequest(unique(), "another run", "stop", None, now_ms()))
        observer.send(PipelineRequest("r-1", run, "pause", "totals", now_ms()))
        wait_until(played.answer)
        observer.wait_for(lambda status: "r-1" in status.answers)
        assert len(observer.statuses()) == 2
    assert not played.home.stop_requested()


def test_the_topics_are_compacted(registry, identity, observer, played, klamm_broker):
    with publishing(registry, identity, played):
        observer.wait_for(bool)
    with klamm_broker.admin() as admin:
        for topic in (STATUS_TOPIC, REQUESTS_TOPIC):
            resource = ConfigResource.topic(topic)
            assert admin.describe_configs([resource])[resource]["cleanup.policy"].value == "compact"


def test_requests_of_the_cluster_are_carried_out_and_answered(registry, identity, observer, played):
    with publishing(registry, identity, played) as run:
        observer.wait_for(lambda status: status.takes_requests)
        observer.send(PipelineRequest("r-1", run, "pause", "totals", now_ms()))
        assert wait_until(played.answer) == [(ControlAction.PAUSE, "totals")]
        observer.wait_for(lambda status: status.answers.get("r-1") == "")
        observer.send(PipelineRequest("r-2", run, "resume", None, now_ms()))
        assert wait_until(lambda: played.answer("it is not paused")) == [(ControlAction.RESUME, None)]
        observer.wait_for(lambda status: status.answers.get("r-2") == "it is not paused")
        observer.send(PipelineRequest("r-3", run, "stop", None, now_ms()))
        wait_until(played.home.stop_requested)
        observer.wait_for(lambda status: status.answers.get("r-3") == "")


def test_a_request_for_an_earlier_run_and_one_that_is_too_old_are_not_carried_out(registry, identity, observer, played):
    with publishing(registry, identity, played) as earlier:
        observer.wait_for(lambda status: status.takes_requests)
    observer.send(PipelineRequest("before", earlier, "stop", None, now_ms()))
    with publishing(registry, identity, played) as run:
        assert run != earlier
        observer.wait_for(lambda status: status.run == run and status.takes_requests)
        observer.send(PipelineRequest("late", earlier, "stop", None, now_ms()))
        observer.send(PipelineRequest("old", run, "stop", None, now_ms() - REQUEST_AGE_MAX_MS - 1000))
        answers = observer.wait_for(lambda status: status.answers).answers
    assert list(answers) == ["old"]
    assert "too old" in answers["old"]
    assert not played.home.stop_requested()


def test_an_old_run_does_not_publish_its_end_over_a_newer_one(registry, identity, observer, played, tmp_path):
    newer_run = PlayedRun(tmp_path / "newer")
    with publishing(registry, identity, played, lambda _: None) as older:
        observer.wait_for(lambda status: status.run == older)
        with publishing(registry, identity, newer_run) as newer:
            observer.wait_for(lambda status: status.run == newer)
        # The newer run is still the last one that had the lease.
        count = len(observer.statuses())
        played.status = {**played.status, "updated_ms": 2}
    assert {status.run for status in observer.statuses()[count:]} <= {newer}


def test_without_the_rights_a_run_logs_one_line_and_takes_requests_of_its_machine(
    tmp_path, identity, played, caplog, monkeypatch
):
    monkeypatch.setattr(cluster_control, "_RETRY_S", 0.05)
    caplog.set_level(logging.DEBUG, logger="klamm.pipeline")
    with secured_node(tmp_path / "node", *SASL_LISTENER) as node:
        alice = {
            "bootstrap.servers": f"127.0.0.1:{node.node.addresses['SASL'][1]}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "one",
        }
        with ClusterControl(PipelineRegistry(alice), RunPlace(identity, "r", "/x"), played.home, played.read_status):
            # Attempts go on in silence.
            wait_until(lambda: len([line for line in caplog.records if "not published" in line.message]) > 3)
            played.home.send_request(ControlAction.PAUSE, None)
            assert played.answer() == [(ControlAction.PAUSE, None)]
        with Admin({"bootstrap.servers": f"127.0.0.1:{node.port}"}) as admin:
            assert STATUS_TOPIC not in {topic.name for topic in admin.list_topics(internal=True)}
    warnings = [
        line for line in caplog.records if line.levelno >= logging.WARNING and line.name.startswith("klamm.pipe")
    ]
    assert len(warnings) == 1
    assert identity.name in warnings[0].message
