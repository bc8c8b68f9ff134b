"""Klamm's scripts and Kafka's tools on a cluster of three: both run the same steps on a topic of their own.

Moves, elections and lost replicas show only where there are several nodes. Each side does every step to its own topic;
the words must be the same but for the topic's name.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat.clients import JavaClient, ToolOutput
from compat.clusters import BrokerCluster
from compat.scripts import MAINS, PASSING, run_klamm, settings_sorted

PATIENCE_S = 90.0
SIDES = ("theirs", "ours")
BOTH_PARTITIONS = ("Partition: 0", "Partition: 1")
Step = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    settings = {"auto.leader.rebalance.enable": "false", "replica.lag.time.max.ms": "4000"}
    kind = request.config.getoption("--broker")
    with BrokerCluster(kind, tmp_path_factory.mktemp("cluster"), overrides=settings) as running:
        yield running


@pytest.fixture
def both(java: JavaClient, cluster: BrokerCluster, topic: str, tmp_path: Path) -> Step:
    """One step by both sides: TOPIC in a word or file becomes the side's own; returns the output of both.

    With `until`, both are repeated until their output is the same and contains these words: a move takes time.
    """

    def one(side: str, script: str, words: tuple[str, ...], files: dict[str, object]) -> ToolOutput:
        own = f"{topic}-{side}"
        args = ["--bootstrap-server", cluster.bootstrap, *(word.replace("TOPIC", own) for word in words)]
        for flag, content in files.items():
            file = tmp_path / f"{side}-{flag}.json"
            file.write_text(json.dumps(content).replace("TOPIC", own))
            args += [f"--{flag.replace('_', '-')}", str(file)]
        output = java.tool(MAINS[script], *args) if side == "theirs" else run_klamm(script, *args)
        return ToolOutput(output.exit, output.out.replace(own, "TOPIC"), output.err.replace(own, "TOPIC"))

    def step(script: str, *words: str, until: tuple[str, ...] = (), exits: int = 0, **files: object) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            outputs = [one(side, script, words, files) for side in SIDES]
            theirs, ours = (_plain(output.out) for output in outputs)
            settled = theirs == ours and all(word in ours for word in until)
            if settled or not until or time.monotonic() > deadline:
                break
        shown = f"{script} {words}\nKafka:\n{outputs[0].text}\nKlamm:\n{outputs[1].text}"
        assert [output.exit for output in outputs] == [exits, exits], shown
        assert ours == theirs, shown
        assert settled, shown
        return ours

    return step


def _plain(text: str) -> str:
    """Without what differs from topic to topic (ids, times), and without Java's stack."""
    plain = re.sub(r"^(org\.apache\.kafka\.\S+Exception: .*|\tat .*)\n", "", text, flags=re.MULTILINE).rstrip("\n")
    plain = PASSING.sub("~", re.sub(r"TopicId: \S+", "TopicId: ~", plain))
    return "\n".join(map(settings_sorted, plain.splitlines()))


def _plan(*replicas: list[int]) -> dict[str, object]:
    parts = [{"topic": "TOPIC", "partition": index, "replicas": ids} for index, ids in enumerate(replicas)]
    return {"version": 1, "partitions": parts}


def _create(both: Step, assignment: str, *configs: str) -> None:
    options = [word for config in configs for word in ("--config", config)]
    both("kafka-topics", "--create", "--topic", "TOPIC", "--replica-assignment", assignment, *options)


def test_replicas_move(both: Step) -> None:
    _create(both, "1:2,2:3")
    begun = both(
        "kafka-reassign-partitions",
        *("--execute", "--throttle", "50000000"),
        reassignment_json_file=_plan([3, 1], [1, 2, 3]),
    )
    assert "The inter-broker throttle limit was set to 50000000 B/s" in begun
    done = tuple(f"Reassignment of partition TOPIC-{index} is completed." for index in (0, 1))
    ended = both("kafka-reassign-partitions", "--verify", until=done, reassignment_json_file=_plan([3, 1], [1, 2, 3]))
    assert "Clearing broker-level throttles" in ended
    shown = both("kafka-topics", "--describe", "--topic", "TOPIC")
    assert "Replicas: 3,1\t" in shown
    both(
        "kafka-reassign-partitions",
        "--execute",
        exits=1,
        reassignment_json_file=_plan([3, 99], [1]),
    )


def test_a_move_is_seen_and_taken_back(both: Step, java: JavaClient, cluster: BrokerCluster, topic: str) -> None:
    """So many bytes at so few per second take longer than the test."""
    _create(both, "1:2")
    for side in SIDES:
        load = ("--num-records", "600", "--record-size", "10000", "--throughput", "-1")
        where = ("--bootstrap-server", cluster.bootstrap, "--topic", f"{topic}-{side}")
        assert java.tool(MAINS["kafka-producer-perf-test"], *where, *load).exit == 0
    slowly = ("--execute", "--additional", "--throttle", "1000")
    both("kafka-reassign-partitions", *slowly, reassignment_json_file=_plan([3, 2]))
    both("kafka-reassign-partitions", "--execute", exits=1, reassignment_json_file=_plan([3, 2]))
    shown = both("kafka-topics", "--describe", "--topic", "TOPIC")
    assert "Adding Replicas: 3\tRemoving Replicas: 1" in shown
    both("kafka-reassign-partitions", "--verify", reassignment_json_file=_plan([3, 2]))
    # The throttle of the brokers is kept: without it the other side's move would be over before it is taken back.
    back = ("--cancel", "--preserve-throttles")
    cancelled = both("kafka-reassign-partitions", *back, reassignment_json_file=_plan([3, 2]))
    assert "Successfully cancelled partition reassignment for: TOPIC-0" in cancelled


def test_leaders_and_lost_replicas(both: Step, cluster: BrokerCluster) -> None:
    _create(both, "3:1:2,1:2:3", "min.insync.replicas=3")
    cluster.node(3).stop()
    behind = ("kafka-topics", "--describe", "--topic", "TOPIC")
    both(*behind, "--under-replicated-partitions", until=BOTH_PARTITIONS)
    both(*behind, "--under-min-isr-partitions", until=BOTH_PARTITIONS)
    both(*behind, "--unavailable-partitions")
    election = ("kafka-leader-election", "--election-type", "preferred", "--topic", "TOPIC", "--partition")
    both(*election, "0", exits=1)
    cluster.node(3).start()
    both(*behind, "--at-min-isr-partitions", until=BOTH_PARTITIONS)
    assert "Successfully completed leader election" in both(*election, "0")
    chosen = {"partitions": [{"topic": "TOPIC", "partition": 1}]}
    both("kafka-leader-election", "--election-type", "preferred", path_to_json_file=chosen)
    assert "Leader: 3\tReplicas: 3,1,2\t" in both(*behind)
