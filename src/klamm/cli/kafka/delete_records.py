"""kafka-delete-records: delete the head of partitions."""

from __future__ import annotations

import functools
from typing import Final

from klamm.cli.kafka.message_json import NotThatJson, list_objects
from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, require
from klamm.cli.kafka.script import ToolFailed, connect, java_error, read_flags, run_check
from klamm.model.errors import KlammError

FLAGS: Final = Flags(
    "kafka-delete-records",
    BOOTSTRAP,
    COMMAND_CONFIG,
    Flag(
        "offset-json-file",
        'A file: {"partitions": [{"topic": "t", "partition": 0, "offset": 10}], "version": 1} (required).',
        "file",
    ),
)


def main(args: list[str]) -> int:
    """Run kafka-delete-records."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    run_check(FLAGS, functools.partial(require, parsed, "bootstrap-server", "offset-json-file"))
    goals = read_plan(parsed.text("offset-json-file"))
    from klamm.cli.queries.offsets import delete_records

    print("Executing records delete operation")
    lines = []
    with connect(parsed) as cluster:
        for place, offset in goals.items():
            name = f"partition: {place[0]}-{place[1]}"
            try:
                # One by one: an error of one partition must not hide the results of the others.
                low = delete_records(cluster, {place: offset})[place]
                lines.append(f"{name}\tlow_watermark: {low}")
            except KlammError as error:
                lines.append(f"{name}\terror: {java_error(error)}")
    print("Records delete operation completed:")
    for line in lines:
        print(line)
    return 0


def read_plan(path: str) -> dict[tuple[str, int], int]:
    """What to delete, from Kafka's JSON."""
    try:
        with open(path, encoding="utf-8") as file:
            plan = list_objects(file.read(), "partitions")
    except OSError:
        raise ToolFailed(f"Unable to read file {path}") from None
    except NotThatJson as error:
        raise ToolFailed(str(error)) from None
    goals: dict[tuple[str, int], int] = {}
    try:
        for entry in plan:
            place = str(entry["topic"]), int(entry["partition"])
            if place in goals:
                raise ToolFailed(f"Offset json file contains duplicate topic partitions: {place[0]}-{place[1]}")
            goals[place] = int(entry["offset"])
    except (KeyError, TypeError, ValueError) as error:
        raise ToolFailed(f"A partition needs topic, partition and offset: {error}") from None
    return goals
