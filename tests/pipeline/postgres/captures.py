"""Captures without Spark: a table of a real PostgreSQL into a topic of a real broker, and what a reader sees."""

import json

import klamm
from klamm.pipeline.postgres.capture import PostgresCapture
from klamm.pipeline.postgres.capture_options import CaptureOptions
from klamm.pipeline.postgres.change_topic import ChangeTopic
from klamm.pipeline.postgres.database import PostgresTable


def options_for(url, table="accounts", key=("id",), slot=None, **more):
    slot = slot or f"klamm_{url.rpartition('/')[2]}"[:63]
    return CaptureOptions("accounts.source", url, "public", table, key, slot, f"{slot}%", slot, **more)


class Captured:
    """One capture, which can be run again and again."""

    def __init__(self, bootstrap, topic, options):
        self.bootstrap, self.topic, self.options = bootstrap, topic, options
        self.name = f"capture-{topic}-{options.slot}"

    def start(self, **more):
        topic = ChangeTopic({"bootstrap.servers": self.bootstrap}, self.topic, self.name)
        return PostgresCapture("accounts.source", PostgresTable(self.options), topic, **more).start()

    def run(self):
        """Capture everything up to now; return the progress of its batches."""
        capture = self.start(once=True)
        assert capture.awaitTermination(60)
        return [report for report in capture.recentProgress if report["durationMs"]]

    def records(self):
        table = klamm.read_topic(self.topic, bootstrap=self.bootstrap, timeout_s=60)
        return [
            (json.loads(row["key"]), None if row["value"] is None else json.loads(row["value"]))
            for row in table.to_pylist()
        ]

    def changes(self):
        """Return operation, key and row of each change; records without a value left out."""
        return [
            (value["op"], *key.values(), value["after"] if value["op"] != "d" else value["before"])
            for key, value in self.records()
            if value is not None
        ]

    def rows(self):
        """Return the rows of the table as a reader of the topic computes them, by key."""
        rows = {}
        for key, value in self.records():
            if value is None or value["op"] == "d":
                rows.pop(tuple(key.values()), None)
            else:
                rows[tuple(key.values())] = value["after"]
        return rows
