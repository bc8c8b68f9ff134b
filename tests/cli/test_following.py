"""`klamm tail` and `consume --follow` outlive the nodes they read from: they wait, say so, and go on.

Older tests ended the command before the node, so none of them saw a node of a running `tail` die.
"""

import json
import os
import signal
import subprocess
import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from harness import KLAMM, KlammCluster, KlammProcess, unique

PATIENCE_S = 90


class Following:
    """A command that runs on and on; its lines are collected as they come."""

    def __init__(self, *args: object) -> None:
        self.process = subprocess.Popen(
            [*KLAMM, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "KLAMM_CONTEXTS": os.devnull},
        )  # fmt: skip
        self.values: list[str] = []
        self.notes: list[str] = []
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._collect, args=(self.process.stdout, self.values, True)),
            threading.Thread(target=self._collect, args=(self.process.stderr, self.notes, False)),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        self.process.stdout.close()
        self.process.stderr.close()

    def _collect(self, stream, lines, is_json):
        for line in stream:
            with self._changed:
                lines.append(json.loads(line)["value"] if is_json else line)
                self._changed.notify_all()

    def wait_for(self, condition):
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_S), (self.values, self.notes, self.process.poll())

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)


def write(bootstrap, topic, values, partition=0):
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "message.timeout.ms": PATIENCE_S * 1000})
    failures = []
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert not any(failures), failures


COMMANDS = {
    "tail": ("tail",),
    "follow": ("consume", "--follow"),
    "group": ("consume", "--follow", "--group", "readers"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_node_that_is_started_again_is_waited_for(tmp_path, command):
    with KlammProcess(tmp_path) as node:
        topic = unique()
        write(node.bootstrap, topic, ["before"])
        with Following(*command, topic, "-b", node.bootstrap) as following:
            following.wait_for(lambda: following.values == ["before"])
            node.kill9()
            following.wait_for(lambda: following.notes)
            assert following.process.poll() is None
            node.start()
            write(node.bootstrap, topic, ["after"])
            following.wait_for(lambda: following.values == ["before", "after"])
            assert following.interrupt() == 0
        assert "waiting" in following.notes[0]
        assert "Traceback" not in "".join(following.notes)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_cluster_is_read_on_without_the_node_it_began_with(tmp_path, command):
    with KlammCluster(tmp_path) as cluster:
        topic = unique()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(PATIENCE_S)
        for partition in range(3):
            write(cluster.bootstrap, topic, [f"before {partition}"], partition)
        with Following(*command, topic, "-b", cluster.nodes[0].bootstrap) as following:
            following.wait_for(lambda: len(following.values) == 3)
            cluster.nodes[0].kill9()
            others = ",".join(node.bootstrap for node in cluster.nodes[1:])
            for partition in range(3):
                write(others, topic, [f"after {partition}"], partition)
            following.wait_for(lambda: len(following.values) == 6)
            assert sorted(following.values) == sorted(f"{when} {p}" for when in ("before", "after") for p in range(3))
            assert following.interrupt() == 0


def test_a_topic_that_is_deleted_ends_it(tmp_path):
    with KlammProcess(tmp_path) as node:
        topic = unique()
        write(node.bootstrap, topic, ["x"])
        with Following("tail", topic, "-b", node.bootstrap) as following:
            following.wait_for(lambda: following.values == ["x"])
            admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
            admin.delete_topics([topic])[topic].result(PATIENCE_S)
            assert following.process.wait(PATIENCE_S) == 3
            following.wait_for(lambda: any("there is no topic" in line for line in following.notes))


def test_what_has_an_end_does_not_wait_for_ever(tmp_path):
    with KlammProcess(tmp_path) as node:
        topic = unique()
        write(node.bootstrap, topic, ["x"])
        node.pause()
        reading = subprocess.run(
            [*KLAMM, "consume", topic, "-b", node.bootstrap, "--timeout", "1s"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        node.resume()
        assert reading.returncode == 5
