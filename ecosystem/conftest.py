"""The nodes that programs run against, and the options of a run."""

from collections.abc import Iterator

import pytest

from compat.brokers import KINDS
from ecosystem.cluster import Cluster
from ecosystem.recorder import Recorder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--broker", choices=sorted(KINDS), default="klamm", help="the broker to judge")
    parser.addoption("--quick", action="store_true", help="only the tests marked quick: the part every change runs")
    parser.addoption("--record", action="store_true", help="write results.json and docs/compatibility.md")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick: part of the gate of every change")
    config.addinivalue_line("markers", "program(name, version): the program a test runs, for the table")
    if config.getoption("--record"):
        config.pluginmanager.register(Recorder(config.getoption("--broker")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        slow = [item for item in items if item.get_closest_marker("quick") is None]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item.get_closest_marker("quick") is not None]


@pytest.fixture(scope="session")
def shared_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes for all modules without settings of their own."""
    with Cluster(request.config.getoption("--broker"), tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def module_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The nodes of a module: the shared ones, or three of its own where it has `BROKER_SETTINGS`."""
    overrides = getattr(request.module, "BROKER_SETTINGS", None)
    if overrides is None:
        yield request.getfixturevalue("shared_cluster")
        return
    kind = request.config.getoption("--broker")
    with Cluster(kind, tmp_path_factory.mktemp("cluster"), overrides=overrides) as cluster:
        yield cluster


@pytest.fixture
def cluster(module_cluster: Cluster) -> Cluster:
    """Three nodes, all of them running and in sync whatever the test before did."""
    module_cluster.restore()
    return module_cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of its own for each test; put a suffix to it for more than one topic."""
    name = f"{request.node.path.stem}-{request.node.name}".replace("test_", "")
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")
