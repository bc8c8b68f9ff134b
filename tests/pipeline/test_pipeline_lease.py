"""The lease of a run: another folder's run is refused while it is alive, and a fenced run is ended."""

import threading

import pytest

from klamm.client import Producer
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text, pipeline_registry
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.pipeline_record import output_places
from klamm.pipeline.sql.pipeline_registry import PipelineRegistry
from klamm.pipeline.sql.status import Home
from klamm.pipeline.sql.supervisor import Supervisor
from klamm.testing import unique
from pipeline.sql.test_starting import Handle, query


@pytest.fixture
def registry(klamm_broker):
    registry = PipelineRegistry({"bootstrap.servers": klamm_broker.bootstrap})
    registry.ensure()
    return registry


@pytest.fixture
def identity():
    return QueryIdentity(unique("id"), unique("name"), {}, {})


def test_a_second_run_is_refused_while_the_first_is_alive(registry, identity):
    with registry.running(identity, "/first", pytest.fail):
        with (
            pytest.raises(ConfigError, match=r"runs already, process \d+ on .* in /first; this one .* in /second"),
            registry.running(identity, "/second", pytest.fail),
        ):
            pytest.fail("two runs")
        # The same folder: its lock decides, and a run that was killed there does not block the next one.
        registry.check_lease(identity, "/first")
        registry.check_lease(QueryIdentity(unique("id"), identity.name, {}, {}), "/second")
    # A run that has ended releases its lease.
    with registry.running(identity, "/second", pytest.fail):
        assert registry.lease(identity).folder == "/second"
    registry.check_lease(identity, "/first")


def test_a_fenced_run_is_ended(registry, identity, klamm_broker, monkeypatch):
    """A newer run of the same folder, e.g. on a machine that was thought dead."""
    monkeypatch.setattr(pipeline_registry, "HEARTBEAT_S", 0.05)
    reasons, ended = [], threading.Event()

    def fence(reason):
        reasons.append(reason)
        ended.set()

    with registry.running(identity, "/first", fence):
        settings = {"bootstrap.servers": klamm_broker.bootstrap, "transactional.id": f"klamm-pipeline-{identity.id}"}
        with Producer(settings) as newer:
            newer.init_transactions()
            assert ended.wait(60)
    assert reasons == [f"{identity.name} was started elsewhere: this run was fenced"]


def test_a_heartbeat_keeps_the_lease_fresh(registry, identity, monkeypatch):
    monkeypatch.setattr(pipeline_registry, "HEARTBEAT_S", 0.05)
    with registry.running(identity, "/first", pytest.fail):
        first = registry.lease(identity)
        while (renewed := registry.lease(identity)).heartbeat_ms == first.heartbeat_ms:
            pass
        assert (renewed.run, renewed.folder) == (first.run, "/first")
    assert registry.lease(identity).heartbeat_ms == 0


def test_the_queries_of_a_fenced_run_stop(tmp_path):
    started, handle, failures = [], Handle(0), []
    supervisor = Supervisor([query("copies", handle, [], started)], Home(str(tmp_path / "home")))

    def run():
        try:
            supervisor.run(once=False)
        except ConfigError as error:
            failures.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive() and not started:
        thread.join(0.01)
    supervisor.fence("bank was started elsewhere: this run was fenced")
    thread.join(60)
    assert not thread.is_alive()
    assert not handle.isActive
    assert failures == ["bank was started elsewhere: this run was fenced"]


def write(registry, names, outcomes, barrier):
    """Start a pipeline for the first time, as a run does."""
    name, topic = names
    pipeline = compile_text(
        f"CREATE STREAM orders (id INT); CREATE STREAM copies WITH (topic = '{topic}') AS SELECT id FROM orders;"
    )
    outputs = output_places(pipeline, registry.host, "/work")
    seen = registry.read_all(name)
    barrier.wait(60)
    try:
        registry.keep(QueryIdentity(unique("id"), name, {}, {}).renew(pipeline), f"/{unique()}", outputs, seen)
        outcomes.append("kept")
    except ConfigError as error:
        outcomes.append(str(error))


@pytest.mark.parametrize("shared", ["name", "output"])
def test_of_two_first_starts_at_the_same_moment_one_is_refused(klamm_broker, registry, shared):
    name, topic = unique("bank"), unique("copies")
    names = [(name, topic), (name if shared == "name" else unique("store"), topic)]
    outcomes, barrier = [], threading.Barrier(len(names))
    threads = [threading.Thread(target=write, args=(registry, pair, outcomes, barrier)) for pair in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    refusals = [outcome for outcome in outcomes if outcome != "kept"]
    assert len(outcomes) == 2
    assert len(refusals) == 1
    assert "was started at the same time, as " in refusals[0]


def test_a_record_of_an_older_name_is_removed(registry):
    identity = QueryIdentity(unique("id"), unique("old"), {}, {})
    registry.keep(identity, "/home")
    renamed = QueryIdentity(identity.id, unique("new"), {}, {})
    registry.keep(renamed, "/home", {}, registry.read_all(renamed.name))
    assert registry.read(identity.name) is None
    assert registry.read(renamed.name).identity == renamed
