"""Klamm's admin on two nodes of either broker: what it changes, and, on Apache Kafka, who may do what.

One quorum that can change, two brokers with two log dirs each. Klamm has no authorizer yet, so rules, limits and
passwords are told to Apache Kafka alone; that Klamm refuses them in words is in `tests/client`.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from compat.brokers import Broker
from compat.clusters import changing_quorum
from harness.admin_stories import ACCESS, MOVING, ONE_BROKER, voters_come_and_go
from harness.client_stories import STORIES as CLIENT_STORIES
from harness.client_stories import Story, until
from klamm.client import Admin

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def start(kind: str, tmp_path_factory: pytest.TempPathFactory) -> list[Broker]:
    folder = tmp_path_factory.mktemp(f"admin-{kind}")
    made = changing_quorum(kind, folder, 2)
    for node in made:
        node.overrides["log.dirs"] = f"{node.data / 'one'},{node.data / 'two'}"
        node.overrides |= AUTHORIZER if kind == "kafka" else {}
    try:
        with ThreadPoolExecutor() as pool:  # a JVM each, where folders are formatted by hand
            list(pool.map(Broker.write_config, made))
        for node in made:
            node.spawn()
        for node in made:
            node.wait_ready()
        with Admin(bootstrap_servers=made[0].bootstrap) as admin:
            until(lambda: len(admin.describe_cluster().brokers) == 2, "both brokers are there")
    except BaseException:
        close(made)
        raise
    return made


def close(nodes: list[Broker]) -> None:
    for node in nodes:
        node.close()


@pytest.fixture(scope="module", params=["kafka", "klamm"])
def nodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    made = start(request.param, tmp_path_factory)
    yield made
    close(made)


STORIES = ONE_BROKER | MOVING | {name: story for name, story in CLIENT_STORIES.items() if name.startswith("an_admin")}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_story(nodes: list[Broker], story: Story) -> None:
    story(nodes[0].bootstrap)


@pytest.mark.parametrize("nodes", ["kafka"], indirect=True)
@pytest.mark.parametrize("story", ACCESS.values(), ids=ACCESS.keys())
def test_story_of_access(nodes: list[Broker], story: Story) -> None:
    story(nodes[0].bootstrap)


def test_voters_come_and_go(nodes: list[Broker]) -> None:
    listener = ("CONTROLLER", "127.0.0.1", nodes[1].controller_port)
    voters_come_and_go(nodes[0].bootstrap, 2, listener)


def test_a_broker_that_left_is_unregistered(nodes: list[Broker]) -> None:
    nodes[1].stop()
    with Admin(bootstrap_servers=nodes[0].bootstrap) as admin:
        until(lambda: len(admin.describe_cluster().brokers) == 1, "the broker has left")
        assert [each.fenced for each in admin.describe_cluster(include_fenced=True).brokers] == [False, True]
        admin.unregister_broker(2)
        until(lambda: len(admin.describe_cluster(include_fenced=True).brokers) == 1, "nobody remembers it")
