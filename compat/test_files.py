"""The files are Kafka's files: its dump tool reads every one of ours, and we serve a folder that Kafka wrote."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.brokers import ApacheKafka, Broker
from compat.clients import ALL_CODECS, JavaClient, Record, Seen

DUMP = "org.apache.kafka.tools.DumpLogSegments"
DELETE = "org.apache.kafka.tools.DeleteRecordsCommand"
ISOLATIONS = ("read_uncommitted", "read_committed")
COMPLAINTS = re.compile(
    r"corrupt|mismatch|exception|isvalid: false|non-?consecutive|out of order|skipped|not found|error|truncat|unknown",
    re.IGNORECASE,
)
# The tool of 4.3.1 prints this for Kafka's own second and later segments too: a file has no offset before its first.
KNOWN_FALSE = re.compile(r"Non-consecutive offsets in \S+/0*(\d+)\.log\n\s+-1 is followed by \1\n")
Picture = dict[tuple[str, int, str], list[Seen]]


def test_kafka_dump_log_reads_every_file(java: JavaClient, broker: Broker) -> None:
    """After all that the clients did to it: a clean stop, then every file by Kafka's reader."""
    broker.stop()
    try:
        folders = [path for path in broker.data.iterdir() if path.is_dir() and re.search(r"-\d+$", path.name)]
        metadata = broker.data / "__cluster_metadata-0"
        data = [path for folder in folders if folder != metadata for path in segment_files(folder)]
        kinds = {path.suffix for path in data}
        assert {".log", ".index", ".timeindex", ".snapshot"} <= kinds
        assert sum(path.suffix == ".log" for path in data) > len(folders), "no segment was rolled"
        dumped = dump(java, data, "--deep-iteration")
        assert dumped.count("Log starting offset:") == sum(path.suffix == ".log" for path in data)
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            assert f"compresscodec: {codec}" in dumped.lower(), codec
        dump(java, [path for path in data if path.suffix == ".index"], "--index-sanity-check")

        records = dump(java, segment_files(metadata), "--deep-iteration", "--cluster-metadata-decoder")
        for kind in (
            "FEATURE_LEVEL",
            "REGISTER_BROKER",
            "TOPIC",
            "PARTITION",
            "CONFIG",
            "PRODUCER_IDS",
            "REMOVE_TOPIC",
        ):
            assert f'"type":"{kind}_RECORD"' in records, kind
        assert "LeaderChange" in records
        snapshots = sorted(metadata.glob("*-*.checkpoint"))
        assert snapshots, "no snapshot of the metadata log was made"
        image = dump(java, snapshots, "--cluster-metadata-decoder")
        assert "SnapshotHeader" in image
        assert "SnapshotFooter" in image
        assert '"type":"TOPIC_RECORD"' in image
    finally:
        broker.start()


@pytest.fixture
def nodes() -> Iterator[list[Broker]]:
    """Brokers a test makes one after the other on one folder; none outlives the test."""
    made: list[Broker] = []
    yield made
    for node in made:
        node.close()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_serve_a_folder_written_by_apache_kafka(
    java: JavaClient, subject: type[Broker], tmp_path: Path, nodes: list[Broker], how: str
) -> None:
    hand_over(java, ApacheKafka(tmp_path), subject, nodes, how=how, transactions=True)


def test_apache_kafka_serves_our_folder(
    java: JavaClient, subject: type[Broker], tmp_path: Path, nodes: list[Broker]
) -> None:
    """A user of the broker can return to Kafka with the same data."""
    hand_over(java, subject(tmp_path), ApacheKafka, nodes, how="SIGTERM", transactions=False)


def hand_over(
    java: JavaClient, writer: Broker, heir_kind: type[Broker], nodes: list[Broker], *, how: str, transactions: bool
) -> None:
    """One broker writes and goes down, another takes over its folder, shows the same records and goes on."""
    nodes.append(writer)
    writer.start()
    topics = write_everything(java, writer, transactions=transactions)
    before = picture(java, writer, topics)
    if how == "SIGTERM":
        writer.stop()
    else:
        writer.kill9()

    heir = writer.successor(heir_kind)
    nodes.append(heir)
    heir.start()
    assert {name: count for name, count in java.topics(heir.bootstrap).items() if not name.startswith("__")} == topics
    assert picture(java, heir, topics) == before

    for topic in topics:
        _, end = java.ends(heir.bootstrap, topic)
        assert java.produce(heir.bootstrap, topic, [Record(b"goes on")], idempotent=True) == [end]
    heir.stop()
    heir.start()
    for topic in topics:
        _, end = java.ends(heir.bootstrap, topic)
        assert java.consume(heir.bootstrap, topic, offset=end - 1, count=1)[0].value == b"goes on"


def write_everything(java: JavaClient, node: Broker, *, transactions: bool) -> dict[str, int]:
    """All kinds of data a folder can hold: codecs, rolled segments, producer state, transactions, a moved start."""
    random_bytes = random.Random(7).randbytes
    to = node.bootstrap
    java.create(to, "gone", 1)
    java.create(to, "rolled", 3, segment_bytes="1048576", index_interval_bytes="4096")
    for i, codec in enumerate(ALL_CODECS):
        for partition in range(3):
            records = [
                Record(random_bytes(8000), key=b"%d" % n, timestamp=1_700_000_000_000 + n, partition=partition)
                for n in range(60 * i, 60 * i + 60)
            ]
            java.produce(to, "rolled", records, codec=codec, linger_ms=50)
    java.create(to, "small", 1)
    odd = [
        Record(None, key=b"tombstone"),
        Record(b"", key=b"", headers=(("empty", b""), ("null", None), ("twice", b"1"), ("twice", b"2"))),
        Record("Klämmchen".encode(), headers=(("ümlaut", b"\x00\xff"),)),
    ]
    java.produce(to, "small", odd)
    java.create(to, "idempotent", 1, segment_bytes="1048576")
    for start in range(0, 300, 30):
        values = [Record(b"%d " % i * 1000) for i in range(start, start + 30)]
        java.produce(to, "idempotent", values, idempotent=True)
    topics = {"rolled": 3, "small": 1, "idempotent": 1, "trimmed": 1}
    if transactions:
        write_transactions(java, to)
        topics["transactional"] = 2
    java.create(to, "trimmed", 1, segment_bytes="1048576")
    java.produce(to, "trimmed", [Record(random_bytes(10_000)) for _ in range(300)])
    plan = node.folder / "plan.json"
    plan.write_text('{"version": 1, "partitions": [{"topic": "trimmed", "partition": 0, "offset": 123}]}')
    cut = java.tool(DELETE, "--bootstrap-server", to, "--offset-json-file", str(plan))
    assert cut.exit == 0, cut.text
    java.delete(to, "gone")
    return topics


def write_transactions(java: JavaClient, to: str) -> None:
    java.create(to, "transactional", 2, segment_bytes="1048576")
    for number, commit in enumerate([True, False, True, False, False, True]):
        java.produce(
            to,
            "transactional",
            [Record(f"{number} {commit} {i} ".encode() * 500, partition=i % 2) for i in range(60)],
            op="transaction",
            transactional_id=f"t{number % 2}",
            commit=commit,
            idempotent=True,
        )


def picture(java: JavaClient, node: Broker, topics: dict[str, int]) -> Picture:
    """Every record of every partition as both kinds of readers see it."""
    records: Picture = {}
    for topic, partitions in topics.items():
        for partition in range(partitions):
            start, end = java.ends(node.bootstrap, topic, partition)
            for isolation in ISOLATIONS:
                seen = java.consume(node.bootstrap, topic, partition, offset=start, count=0, isolation=isolation)
                assert seen, (topic, partition, isolation)
                records[topic, partition, isolation] = seen
            if topic != "transactional":
                whole = records[topic, partition, "read_uncommitted"]
                assert [one.offset for one in whole] == list(range(start, end))
    return records


def segment_files(folder: Path) -> list[Path]:
    kinds = {".log", ".index", ".timeindex", ".snapshot", ".txnindex"}
    # An index of a segment is compared with its log, so the logs come first.
    return sorted(
        (path for path in folder.iterdir() if path.suffix in kinds), key=lambda path: (path.stem, path.suffix)
    )


def dump(java: JavaClient, files: list[Path], *options: str) -> str:
    output = java.tool(DUMP, *options, "--files", ",".join(map(str, files)))
    assert output.exit == 0, output.text[-3000:]
    assert output.out.count("Dumping ") == len(files)
    lines = KNOWN_FALSE.sub("", output.text).splitlines()
    complaints = [i for i, line in enumerate(lines) if COMPLAINTS.search(line.split("Dumping")[0])]
    assert not complaints, "\n".join(lines[complaints[0] : complaints[0] + 10])
    return output.out
