"""Klamm's pytest plugin: fixtures for a broker per run, a topic per test, clients, and a cluster.

    def test_orders(klamm_broker, klamm_topic):
        with klamm_broker.producer() as producer:
            producer.send(klamm_topic, b"two espressi").result()

Loaded by its entry point; imports nothing of Klamm until a fixture is used.

    pytest --klamm-broker=child         a process of its own instead of a thread of the tests
    pytest --klamm-bootstrap=HOST:PORT  an existing cluster of Klamm or Apache Kafka
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from klamm.client import Admin, Consumer, Producer
    from klamm.testing.brokers import Broker
    from klamm.testing.clusters import Cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the plugin."""
    group = parser.getgroup("klamm", "a broker for tests")
    group.addoption(
        "--klamm-broker",
        choices=("inprocess", "child"),
        default="inprocess",
        help="where the broker of klamm_broker runs: in this process (default) or in a child",
    )
    group.addoption("--klamm-bootstrap", metavar="HOST:PORT", help="use this cluster instead of starting a broker")
    parser.addini("klamm_config", "settings of the broker, KEY=VALUE, one per line", type="linelist", default=[])


@pytest.fixture(scope="session")
def klamm_config(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings of the broker by Kafka's names, from the ini option; override this fixture for others."""
    settings = {}
    for line in request.config.getini("klamm_config"):
        # The first "=" only: values such as JAAS lines contain more of them.
        name, _, value = line.partition("=")
        settings[name.strip()] = value.strip()
    return settings


@pytest.fixture(scope="session")
def klamm_broker(request: pytest.FixtureRequest, klamm_config: dict[str, str]) -> Iterator[Broker]:
    """One broker for the whole run (one per xdist worker). Tests are isolated by unique names."""
    bootstrap = request.config.getoption("--klamm-bootstrap")
    if bootstrap:
        from klamm.testing.brokers import OtherBroker

        yield OtherBroker(bootstrap)
        return
    from klamm.testing import broker

    with broker(child=request.config.getoption("--klamm-broker") == "child", config=klamm_config) as running:
        yield running


@pytest.fixture
def klamm_own_broker(request: pytest.FixtureRequest, klamm_config: dict[str, str]) -> Iterator[Broker]:
    """A broker for this test only: for tests that stop or disturb it."""
    from klamm.testing import broker

    with broker(child=request.config.getoption("--klamm-broker") == "child", config=klamm_config) as running:
        yield running


@pytest.fixture(scope="session")
def klamm_cluster(klamm_config: dict[str, str]) -> Iterator[Cluster]:
    """Three brokers, each a process, for the whole run."""
    from klamm.testing.clusters import cluster

    with cluster(3, config=klamm_config) as running:
        yield running


@pytest.fixture
def klamm_bootstrap(klamm_broker: Broker) -> str:
    """bootstrap.servers of the broker."""
    return klamm_broker.bootstrap


@pytest.fixture
def klamm_topic(klamm_broker: Broker, request: pytest.FixtureRequest) -> str:
    """A new topic, named after the test; @pytest.mark.klamm_topic(partitions=3) sets its partitions and settings."""
    mark = request.node.get_closest_marker("klamm_topic")
    return klamm_broker.topic(request.node.name, **(mark.kwargs if mark else {}))


@pytest.fixture
def klamm_name(request: pytest.FixtureRequest) -> Callable[..., str]:
    """A function that makes unique names for topics and groups."""
    from klamm.testing.names import unique

    def make_name(prefix: str = request.node.name) -> str:
        return unique(prefix)

    return make_name


@pytest.fixture
def klamm_producer(klamm_broker: Broker) -> Iterator[Producer]:
    """A blocking producer; closed after the test."""
    with klamm_broker.producer() as producer:
        yield producer


@pytest.fixture
def klamm_consumer(klamm_broker: Broker, klamm_topic: str) -> Iterator[Consumer]:
    """A blocking consumer of `klamm_topic` from its first record on, in a group of its own; closed after the test."""
    with klamm_broker.consumer(klamm_topic) as consumer:
        yield consumer


@pytest.fixture
def klamm_admin(klamm_broker: Broker) -> Iterator[Admin]:
    """A blocking admin client; closed after the test."""
    with klamm_broker.admin() as admin:
        yield admin


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", "klamm_topic(partitions, config): partitions and settings of klamm_topic")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import what a broker needs if a test uses one, so that the time is not counted for the first test."""
    # A timeout of the first test should not include the import of a broker and a client.
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if session.config.getoption("--klamm-bootstrap") or session.config.option.collectonly:
        return
    if wanted & {"klamm_broker", "klamm_own_broker"} and session.config.getoption("--klamm-broker") == "inprocess":
        import klamm.client.blocking_producer
        import klamm.testing.node_thread  # noqa: F401 - imported for its effect
