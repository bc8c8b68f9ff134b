"""A word count as faust's own guide builds it: a table with a changelog, and each new count sent on."""

import os

import faust

SETTINGS = os.environ
PARTITIONS = int(SETTINGS["ECOSYSTEM_PARTITIONS"])
app = faust.App(
    SETTINGS["ECOSYSTEM_GROUP"],
    broker=[f"kafka://{address}" for address in SETTINGS["ECOSYSTEM_BOOTSTRAP"].split(",")],
    datadir=SETTINGS["ECOSYSTEM_STATE"],
    store="memory://",
    topic_partitions=PARTITIONS,
    topic_replication_factor=3,
    consumer_auto_offset_reset="earliest",
    broker_commit_every=100,
    broker_session_timeout=10.0,
    broker_heartbeat_interval=1.0,
    web_enabled=False,
)
words = app.topic(
    SETTINGS["ECOSYSTEM_TOPIC"], key_type=str, value_type=str, key_serializer="raw", value_serializer="raw"
)
counts = app.topic(
    SETTINGS["ECOSYSTEM_TARGET"], key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
)
table = app.Table("counts", default=int, partitions=PARTITIONS)


@app.agent(words)
async def count(stream: faust.Stream) -> None:
    """Count words; a record has its word as the key, so a word is always counted by the same worker."""
    async for word, _ in stream.items():  # noqa: PERF102 - a stream, not a dict
        name = word.decode() if isinstance(word, bytes) else word
        table[name] += 1
        await counts.send(key=name.encode(), value=str(table[name]).encode())


if __name__ == "__main__":
    app.main()
