"""One broker and one process per client for each worker."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from compat.brokers import KINDS, Broker
from compat.clients import Client, GoClient, JavaClient, JsClient, KcatClient, ToolOutput
from compat.scripts import Beside, comparison, run_klamm

# Small enough that a run leaves snapshots of the metadata log behind for kafka-dump-log to read.
SNAPSHOT_BYTES = {"metadata.log.max.record.bytes.between.snapshots": "10000"}
# Groups that notice a crash within seconds, on both protocols, and transactions whose time is over.
QUICK_GROUPS = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
CLIENTS: dict[str, type[Client]] = {"java": JavaClient, "franz-go": GoClient, "kafkajs": JsClient, "kcat": KcatClient}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--broker", choices=sorted(KINDS), default="klamm", help="the broker to judge")


SHARED = (
    "test_crowd_rules",
    "test_clients",
    "test_python_client",
    "test_tools",
    "test_groups",
    "test_group_tools",
    "test_consumer_groups_beside",
    "test_transactions",
    "test_transactions_beside",
    "test_scripts_beside",
    "test_transactional_clients",
    "test_restarts",
    "test_files",
    "test_dump_log_beside",
)
"""Files that share a broker, in this order: clients write, tools read, and at last the files are checked."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: SHARED.index(item.path.stem) if item.path.stem in SHARED else len(SHARED))


class FilesInOrder(LoadScopeScheduling):
    """A worker runs the files that share a broker; the others are shared out file by file."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "shared" if Path(path).stem in SHARED else path

    def _assign_work_unit(self, node: Any) -> None:
        if not any(self.assigned_work.values()) and "shared" in self.workqueue:  # the longest first
            self.workqueue.move_to_end("shared", last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesInOrder:
    return FilesInOrder(config, log)


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest) -> type[Broker]:
    """The kind of broker this run tests."""
    return KINDS[request.config.getoption("--broker")]


@pytest.fixture(scope="session")
def broker(subject: type[Broker], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    node = subject(tmp_path_factory.mktemp("broker"), overrides={**SNAPSHOT_BYTES, **QUICK_GROUPS})
    try:
        yield node.start()
    finally:
        node.close()


@pytest.fixture(scope="session")
def all_clients() -> Iterator[dict[str, Client]]:
    made: dict[str, Client] = {}
    try:
        for name, kind in CLIENTS.items():
            made[name] = kind()
        yield made
    finally:
        for client in made.values():
            client.close()


@pytest.fixture(scope="session")
def java(all_clients: dict[str, Client]) -> JavaClient:
    client = all_clients["java"]
    assert isinstance(client, JavaClient)
    return client


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, all_clients: dict[str, Client]) -> Client:
    return all_clients[request.param]


@pytest.fixture
def klamm() -> Callable[..., ToolOutput]:
    """Run a script of ours."""
    return run_klamm


@pytest.fixture
def beside(java: JavaClient, broker: Broker) -> Beside:
    """Run a script by Kafka's tool and by ours, and compare."""
    return comparison(java, broker)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of its own for each test, readable in a dump."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name).strip("-")
