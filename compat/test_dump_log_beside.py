"""Every file of a data folder, printed by Kafka's kafka-dump-log and by ours: the same lines.

The folder is the one the suite has written to, with a little of everything added: groups of both protocols,
transactions, snapshots.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.brokers import Broker
from compat.scripts import Beside
from harness.client_stories import (
    PATIENCE_S,
    a_group_goes_on_where_it_stopped,
    an_admin_manages_groups,
    transactions_are_seen_whole_or_not_at_all,
    until,
)
from klamm.client import Admin, NewTopic, Producer

TEXTS = "dump-texts"
LOG_BYTES_MAX = 300_000
"""Larger segments of topics hold more of the same."""
LIST_CHARS_MAX = 100_000
"""Of files a tool is given at once: an argument has a limit, and the suite leaves thousands of files."""


def write_all_kinds(broker: Broker) -> None:
    """The records that the test compares, whatever was written before."""
    transactions_are_seen_whole_or_not_at_all(broker.bootstrap)
    an_admin_manages_groups(broker.bootstrap)
    for protocol in ("classic", "consumer"):
        a_group_goes_on_where_it_stopped(broker.bootstrap, group_protocol=protocol)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(TEXTS, 1, 1), NewTopic("dump-many", 200, 1)])
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(20):
            producer.send(TEXTS, f"line {number} ü".encode(), f"key {number}".encode(), headers=[("h", b"v")])
        for _ in range(5):  # batches of their own, larger than index.interval.bytes
            producer.send(TEXTS, b"long " * 1000).result(PATIENCE_S)
    metadata = broker.data / "__cluster_metadata-0"
    until(lambda: list(metadata.glob("*-*.checkpoint")), "the metadata log has a snapshot")


@pytest.fixture(scope="module")
def folders(broker: Broker) -> Iterator[dict[str, list[Path]]]:
    """The files of each topic, of a broker that was stopped: what it keeps in memory is on disk."""
    write_all_kinds(broker)
    broker.stop()
    files_by_topic: dict[str, list[Path]] = {}
    for folder in sorted(broker.data.iterdir()):
        name = re.fullmatch(r"(.*)-\d+", folder.name)
        if name and folder.is_dir():
            limit = LOG_BYTES_MAX if name[1] != "__cluster_metadata" else 1 << 30
            files = [path for path in sorted(folder.iterdir()) if path.stat().st_size < limit]
            files_by_topic.setdefault(name[1], []).extend(files)
    yield files_by_topic
    broker.start()


def ending(files: list[Path], *endings: str) -> list[str]:
    chosen = [str(path) for path in files if path.suffix in endings]
    assert chosen, endings
    return chosen


def dump(beside: Beside, *flags: str, files: list[str]) -> str:
    """What both tools say of files."""
    output = ""
    share: list[str] = []
    for file in files:
        share.append(file)
        if sum(map(len, share)) > LIST_CHARS_MAX:
            output += beside("kafka-dump-log", *flags, "--files", ",".join(share), server=False).out
            share = []
    if share:
        output += beside("kafka-dump-log", *flags, "--files", ",".join(share), server=False).out
    return output


def own(folders: dict[str, list[Path]]) -> list[Path]:
    return [path for name, files in folders.items() if not name.startswith("__") for path in files]


def test_segments(beside: Beside, folders: dict[str, list[Path]]) -> None:
    output = dump(beside, "--deep-iteration", files=ending(own(folders), ".log"))
    assert "endTxnMarker: COMMIT" in output
    assert "endTxnMarker: ABORT" in output


@pytest.mark.parametrize("flag", ["--skip-record-metadata", "--max-bytes=200", "--value-decoder-class"])
def test_ways_to_look_at_a_segment(beside: Beside, folders: dict[str, list[Path]], flag: str) -> None:
    texts = [path for path in own(folders) if path.parent.name == f"{TEXTS}-0"]
    dump(beside, "--print-data-log", flag, files=ending(texts, ".log"))


@pytest.mark.parametrize("flags", [(), ("--index-sanity-check",), ("--verify-index-only",)])
def test_indexes(beside: Beside, folders: dict[str, list[Path]], flags: tuple[str, ...]) -> None:
    output = dump(beside, *flags, files=ending(own(folders), ".index", ".timeindex"))
    if not flags:
        assert re.search(r"offset: \d+ position: [1-9]", output)
        assert re.search(r"timestamp: \d+ offset: [1-9]", output)


def test_producer_states_and_aborted_transactions(beside: Beside, folders: dict[str, list[Path]]) -> None:
    output = dump(beside, files=ending(own(folders), ".snapshot", ".txnindex"))
    assert "firstSequence: " in output
    assert "lastStableOffset: " in output


def test_groups(beside: Beside, folders: dict[str, list[Path]]) -> None:
    output = dump(beside, "--offsets-decoder", files=ending(folders["__consumer_offsets"], ".log"))
    assert "<DELETE>" in output
    for kind in (1, 2, 3, 5, 6, 7, 8):
        assert f'key: {{"type":"{kind}"' in output, kind
    assert '"assignedPartitions"' in output


def test_transactions(beside: Beside, folders: dict[str, list[Path]]) -> None:
    output = dump(beside, "--transaction-log-decoder", files=ending(folders["__transaction_state"], ".log"))
    assert '"transactionStatus"' in output


def test_metadata(beside: Beside, folders: dict[str, list[Path]]) -> None:
    files = ending(folders["__cluster_metadata"], ".log", ".checkpoint")
    output = dump(beside, "--cluster-metadata-decoder", files=files)
    assert "LeaderChange: {" in output
    assert "SnapshotHeader {" in output
    dump(beside, "--cluster-metadata-decoder", "--skip-record-metadata", files=files)


def test_what_is_no_log(beside: Beside, folders: dict[str, list[Path]]) -> None:
    strange = [path for path in own(folders) if path.name == "partition.metadata"][:1]
    beside("kafka-dump-log", "--files", str(strange[0]), server=False)
    beside("kafka-dump-log", "--files", str(strange[0].parent / "leader-epoch-checkpoint"), server=False)
    beside("kafka-dump-log", "--files", "/there/is/none.log", server=False, exits=1)
