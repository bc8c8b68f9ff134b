"""Several clusters from contexts, in one console."""

import contextlib
import os
import re
import subprocess
import sys

import pytest

from klamm.cli.command_errors import CommandRefusal
from klamm.cli.console import _add_registries
from klamm.console.clusters import ConsoleCluster
from klamm.testing import InProcessBroker, unique

from .served import START_S, Visit


@contextlib.contextmanager
def running_console(folder, *options):
    """A console as a process of its own, with the contexts of a folder; yields its address."""
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    command = [sys.executable, "-m", "klamm", "console", "--port", "0", "--until-eof", "--no-history", *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        line = process.stdout.readline()
        try:
            yield line.partition(" ready on ")[2].partition(",")[0]
        finally:
            process.stdin.close()
            process.wait(START_S)


def klamm(folder, *words):
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder)}
    subprocess.run([sys.executable, "-m", "klamm", *words], env=environment, check=True, timeout=START_S)


def test_all_contexts_are_clusters_of_one_console(broker, tmp_path):
    topic, other_topic = unique("one"), unique("two")
    with InProcessBroker() as other:
        for node, name in ((broker, topic), (other, other_topic)):
            with node.admin() as admin:
                admin.create_topic(name)
        klamm(tmp_path, "ctx", "add", "test", "-b", broker.bootstrap)
        klamm(tmp_path, "ctx", "add", "prod", "-b", other.bootstrap, "--protected")
        klamm(tmp_path, "ctx", "add", "down", "-b", "127.0.0.1:1")
        registry = "prod=http://127.0.0.1:2"
        with running_console(tmp_path, "--all-contexts", "--registry", registry) as url:
            visit = Visit(url)
            # Each cluster is reached by its own page; the first waits for its sample.
            assert topic in visit.get(f"/c/test/topics?q={topic}")
            assert f"/topics/{other_topic}" not in visit.get(f"/c/test/topics?q={other_topic}")
            page = visit.get(f"/c/prod/topics?q={other_topic}")
            assert other_topic in page
            assert "protected" in page
            # The registry is that of one cluster.
            assert '"/c/prod/schemas"' in page
            assert '"/c/test/schemas"' not in visit.get("/c/test")
            page = visit.get("/")
            assert "<h1>Clusters</h1>" in page
            assert re.findall(r'class="card cluster-card" href="/c/(\w+)"', page) == ["test", "down", "prod"]
            assert re.search(r"1 broker, \d+ topics?, \d+ groups?", page)
            visit.get("/c/down/topics", 503)
            assert "127.0.0.1:1" in visit.get("/")


CLUSTERS = [ConsoleCluster("test", "a:9092"), ConsoleCluster("prod", "b:9092")]


@pytest.mark.parametrize(
    ("registries", "urls"),
    [
        ((), [None, None]),
        (("http://a:8081",), ["http://a:8081", None]),
        (("http://a:8081/?x=1",), ["http://a:8081/?x=1", None]),
        (("prod=http://b:8081", "http://a:8081"), ["http://a:8081", "http://b:8081"]),
    ],
)
def test_registries_of_the_command_line(registries, urls):
    assert [cluster.registry_url for cluster in _add_registries(CLUSTERS, registries)] == urls


def test_a_registry_of_an_unknown_context_is_refused():
    with pytest.raises(CommandRefusal, match="no cluster stage; it shows test, prod"):
        _add_registries(CLUSTERS, ["stage=http://c:8081"])
