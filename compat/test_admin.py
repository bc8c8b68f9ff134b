"""Klamm's admin on two nodes of either broker: what it changes, and who may do what.

One quorum that can change, two brokers with two log dirs each and an authorizer.
"""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from click.testing import CliRunner

from compat.brokers import Broker
from compat.clusters import changing_quorum
from harness.admin_stories import ACCESS, MOVING, ONE_BROKER, voters_come_and_go
from harness.client_stories import STORIES as CLIENT_STORIES
from harness.client_stories import Story, until
from harness.wire import unique
from klamm.cli.main import cli
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
        node.overrides |= AUTHORIZER
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


@pytest.mark.parametrize("story", ACCESS.values(), ids=ACCESS.keys())
def test_story_of_access(nodes: list[Broker], story: Story) -> None:
    story(nodes[0].bootstrap)


def test_voters_come_and_go(nodes: list[Broker]) -> None:
    listener = ("CONTROLLER", "127.0.0.1", nodes[1].controller_port)
    voters_come_and_go(nodes[0].bootstrap, 2, listener)


def test_the_command_line(nodes: list[Broker], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every noun that speaks to a cluster, from nothing to nothing."""
    monkeypatch.setenv("KLAMM_CONTEXTS", os.devnull)
    topic, group = unique("nouns"), unique("group")

    def klamm(*words: str, exits: int = 0, stdin: str = "") -> list[dict[str, Any]]:
        done = CliRunner().invoke(cli, [*words, "-b", nodes[0].bootstrap], input=stdin, prog_name="klamm")
        assert done.exit_code == exits, f"{words}\n{done.output}\n{done.exception!r}"
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    klamm("topic", "create", topic, "-p", "2", "-r", "2", "-c", "retention=7d", "--dry-run")
    klamm("topic", "create", topic, "-p", "2", "-r", "2", "-c", "retention=7d")
    klamm("topic", "create", topic, exits=1)
    assert topic in {row["topic"] for row in klamm("topic", "ls", "--sizes")}
    klamm("produce", topic, "-K", ":", stdin="a:1\nb:2\na:3\n")
    assert {row["value"] for row in klamm("consume", topic, "--where", 'key == "a"')} == {"1", "3"}
    assert len(klamm("tail", topic, "--no-follow", "-n", "2")) == 2
    assert len(klamm("consume", topic, "-g", group, "-n", "3")) == 3
    assert group in {row["group"] for row in klamm("group", "ls")}
    klamm("group", "seek", group, "--to", "earliest", "--topic", topic, "--yes")
    (shown,) = klamm("group", "show", group)
    assert {row["offset"] for row in shown["offsets"]} == {0}
    klamm("topic", "alter", topic, "-p", "3", "--unset", "retention")
    klamm("config", "set", "topic", topic, "segment.bytes=64MiB")
    assert "segment.bytes" in {row["setting"] for row in klamm("config", "ls", "topic", topic)}
    klamm("config", "unset", "topic", topic, "segment.bytes")
    klamm("topic", "trim", topic, "--before", "latest", "--yes")
    (shown,) = klamm("topic", "show", topic)
    assert {row["first"] == row["next"] for row in shown["partitions"]} == {True}
    klamm("txn", "ls")
    klamm("txn", "show", "unknown-id", exits=3)
    klamm("cluster", "reassign", topic, "--dry-run")
    klamm("cluster", "elect", topic)
    (shown,) = klamm("cluster", "show")
    assert len(shown["brokers"]) == 2
    assert {row["state"] for row in klamm("doctor")} <= {"ok", "warning"}
    klamm("bench", "--topic", topic, "-n", "100")
    klamm("group", "delete", group, "--yes")
    klamm("topic", "delete", topic, "--yes")
    klamm("topic", "show", topic, exits=3)


def test_a_broker_that_left_is_unregistered(nodes: list[Broker]) -> None:
    nodes[1].stop()
    with Admin(bootstrap_servers=nodes[0].bootstrap) as admin:
        until(lambda: len(admin.describe_cluster().brokers) == 1, "the broker has left")
        assert [broker.fenced for broker in admin.describe_cluster(include_fenced=True).brokers] == [False, True]
        admin.unregister_broker(2)
        until(lambda: len(admin.describe_cluster(include_fenced=True).brokers) == 1, "the broker is unregistered")
