"""One script, two programs: Apache Kafka's tool and Klamm's, with the same arguments and the same expected output."""

import os
import re
import subprocess
from collections.abc import Callable

from compat.brokers import Broker, klamm_command, klamm_environment
from compat.clients import JavaClient, ToolOutput

TOOLS = "org.apache.kafka.tools."
MAINS = {
    "kafka-topics": TOOLS + "TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": TOOLS + "consumer.group.ConsumerGroupCommand",
    "kafka-get-offsets": TOOLS + "GetOffsetShell",
    "kafka-leader-election": TOOLS + "LeaderElectionCommand",
    "kafka-reassign-partitions": TOOLS + "reassign.ReassignPartitionsCommand",
    "kafka-delete-records": TOOLS + "DeleteRecordsCommand",
    "kafka-log-dirs": TOOLS + "LogDirsCommand",
    "kafka-transactions": TOOLS + "TransactionsCommand",
    "kafka-dump-log": TOOLS + "DumpLogSegments",
    "kafka-metadata-quorum": TOOLS + "MetadataQuorumCommand",
    "kafka-features": TOOLS + "FeatureCommand",
    "kafka-cluster": TOOLS + "ClusterTool",
    "kafka-broker-api-versions": TOOLS + "BrokerApiVersionsCommand",
    "kafka-acls": TOOLS + "AclCommand",
    "kafka-delegation-tokens": TOOLS + "DelegationTokenCommand",
    "kafka-console-consumer": TOOLS + "consumer.ConsoleConsumer",
    "kafka-producer-perf-test": TOOLS + "ProducerPerformance",
    "kafka-consumer-perf-test": TOOLS + "ConsumerPerformance",
}
# Times go on and the metadata log grows (an idle Kafka writes to it twice a second) between two calls.
PASSING = re.compile(r"\b1[789]\d{11}\b|\d+ ms ago|(?<=HighWatermark:          )\d+")
Beside = Callable[..., ToolOutput]


def run_klamm(script: str, *args: str, stdin: bytes = b"") -> ToolOutput:
    """Run a script of ours."""
    done = subprocess.run(
        [*klamm_command(), script, *args],
        input=stdin,
        capture_output=True,
        timeout=90,
        check=False,
        env={**klamm_environment(), "KLAMM_CONTEXTS": os.devnull},
    )
    return ToolOutput(done.returncode, done.stdout.decode(), done.stderr.decode())


def comparison(java: JavaClient, broker: Broker) -> Beside:
    """Run a script by both, and compare; `ordered=False` compares lines as a set."""

    def compare(script: str, *args: str, ordered: bool = True, server: bool = True, exits: int = 0) -> ToolOutput:
        where = ("--bootstrap-server", broker.bootstrap) if server else ()
        theirs = java.tool(MAINS[script], *where, *args)
        ours = run_klamm(script, *where, *args)
        shown = f"{script} {' '.join(args)}\nKafka:\n{theirs.out}{theirs.err}\nKlamm:\n{ours.out}{ours.err}"
        assert theirs.exit == exits, shown
        assert ours.exit == exits, shown
        left, right = (PASSING.sub("~", output.out).splitlines() for output in (theirs, ours))
        if not ordered:
            left, right = sorted(map(settings_sorted, left)), sorted(map(settings_sorted, right))
        assert right == left, shown
        return ours

    return compare


def settings_sorted(line: str) -> str:
    """Kafka's tool prints a topic's settings in the order of a hash table."""
    before, label, settings = line.partition("Configs: ")
    return before + label + ",".join(sorted(settings.split(",")))
