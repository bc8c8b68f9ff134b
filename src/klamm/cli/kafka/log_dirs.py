"""kafka-log-dirs: how much each replica takes of each log dir, as one line of JSON."""

from __future__ import annotations

import functools
import json
from typing import Final

from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, require
from klamm.cli.kafka.script import ToolFailed, connect, error_text, integers, read_flags, run_check
from klamm.model.errors import ErrorCode

FLAGS: Final = Flags(
    "kafka-log-dirs",
    BOOTSTRAP,
    COMMAND_CONFIG,
    Flag("describe", "Show the log dirs (required)."),
    Flag("topic-list", "Only these topics: t,u", "topics"),
    Flag("broker-list", "Only these brokers: 1,2", "numbers"),
)


def main(args: list[str]) -> int:
    """Run kafka-log-dirs."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    run_check(FLAGS, functools.partial(require, parsed, "bootstrap-server", "describe"))
    from klamm.cli.queries.cluster import describe_log_dirs

    topics = {name for name in parsed.text("topic-list").split(",") if name}
    with connect(parsed) as cluster:
        # Checked before the request: an unknown broker would look like an empty log dir.
        known = cluster.broker_ids
        wanted = integers(parsed.text("broker-list")) if parsed.text("broker-list") else known
        missing = sorted(set(wanted) - set(known))
        if missing:
            raise ToolFailed(
                f"ERROR: The given brokers do not exist from --broker-list: {','.join(map(str, missing))}."
                f" Current existent brokers: {','.join(map(str, known))}"
            )
        # Scripts skip these two lines and parse the JSON in the third.
        print("Querying brokers for log directories information")
        held = describe_log_dirs(cluster, sorted(set(wanted)))
    print(f"Received log directory information from brokers {','.join(map(str, sorted(set(wanted))))}")
    brokers = [
        {
            "broker": broker,
            "logDirs": [
                {
                    "partitions": [
                        {
                            "partition": str(partition),
                            "size": replica.size,
                            "offsetLag": replica.offset_lag,
                            "isFuture": replica.is_future,
                        }
                        for partition, replica in log_dir.replicas.items()
                        if not topics or partition.topic in topics
                    ],
                    "error": error_text(ErrorCode(log_dir.error_code)) if log_dir.error_code else None,
                    "logDir": log_dir.path,
                }
                for broker_id, log_dir in held
                if broker_id == broker
            ],
        }
        for broker in sorted(set(wanted))
    ]
    print(json.dumps({"brokers": brokers, "version": 1}, separators=(",", ":")))
    return 0
