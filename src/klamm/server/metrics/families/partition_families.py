"""Metrics of partitions and topics: traffic, sizes, offsets, replicas.

The replicas of a snapshot are read as columns: with ten thousand of them, a look at each value of each row takes too
long. Whole columns are compared, summed and formatted by single calls, and columns with the same values share their
text: in a healthy cluster most of them do (all replicas in sync, no partition under-replicated, one segment).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import eq, lt
from typing import Final

from klamm.server.metrics.snapshot import NodeSnapshot, PartitionFacts
from klamm.telemetry.exposition import Family, Sample, escape

BROKER_TOPIC: Final = "kafka_server_brokertopicmetrics"
REPLICA_MANAGER: Final = "kafka_server_replicamanager"
MetricColumn = tuple[int, ...]


class PartitionLines:
    """The lines of the last scrape: most columns of most scrapes have the values of the one before."""

    def __init__(self) -> None:
        self._names: tuple[MetricColumn, MetricColumn] = ((), ())
        self._labels: list[str] = []
        self._lines: dict[MetricColumn, list[str]] = {}

    def reuse(self, table: PartitionTable) -> tuple[list[str], dict[MetricColumn, list[str]]]:
        """Return the labels of a table, and the lines that are known by their values."""
        names = (table["topic"], table["partition"])
        if names != self._names:
            pairs = zip(*names, strict=True)
            labels = [f'{{topic="{topic}",partition="{index}"}} ' for topic, index in pairs]
            # New objects instead of changed ones: another thread may format a scrape with those of before.
            self._names, self._labels, self._lines = names, labels, {}
        return self._labels, self._lines

    def keep(self, table: PartitionTable, lines: dict[MetricColumn, list[str]]) -> None:
        """Remember the lines of a table for the next scrape, and no others."""
        if self._names == (table["topic"], table["partition"]):
            self._lines = lines


class PartitionTable:
    """Columns by the fields of PartitionFacts, and `under_replicated`, `under_min_isr` and `at_min_isr`."""

    def __init__(self, rows: Sequence[PartitionFacts], kept: PartitionLines | None = None) -> None:
        self.count = len(rows)
        columns = zip(*rows, strict=True) if rows else ((),) * len(PartitionFacts._fields)
        self._columns: dict[str, MetricColumn] = {}
        # Not with one call: the interpreter can switch to the loop's thread between two columns.
        for name, column in zip(PartitionFacts._fields, columns, strict=True):
            self._columns[name] = column
        # min.insync.replicas may be more than a topic has replicas.
        needed = tuple(map(min, self["min_isr"], self["replicas"]))
        # int: a text of a flag is 0 or 1, not False or True.
        self._columns["under_replicated"] = tuple(map(int, map(lt, self["isr"], self["replicas"])))
        self._columns["under_min_isr"] = tuple(map(int, map(lt, self["isr"], needed)))
        self._columns["at_min_isr"] = tuple(map(int, map(eq, self["isr"], needed)))
        self._columns["is_preferred"] = tuple(map(int, self["is_preferred"]))
        self._kept = kept or PartitionLines()
        self._labels: list[str] | None = None
        self._known: dict[MetricColumn, list[str]] = {}
        self._texts: dict[MetricColumn, list[str]] = {}

    def __getitem__(self, column: str) -> MetricColumn:
        return self._columns[column]

    def format(self, column: str) -> list[str]:
        """Return a line for every row, with labels and value; columns with the same values have the same lines."""
        if self._labels is None:
            self._labels, self._known = self._kept.reuse(self)
        values = self[column]
        lines = self._texts.get(values)
        if lines is None:
            lines = self._known.get(values)
            if lines is None:
                lines = [f"{label}{value}\n" for label, value in zip(self._labels, values, strict=True)]
            self._texts[values] = lines
        return lines

    def keep_lines(self) -> None:
        """Leave the lines that were formatted to the next scrape."""
        self._kept.keep(self, self._texts)

    def topic_ranges(self) -> dict[str, list[slice]]:
        """Return where the rows of each topic are: partitions of a topic mostly follow one another."""
        ranges: dict[str, list[slice]] = {}
        start = 0
        for topic, rows in groupby(self["topic"]):
            end = start + sum(1 for _ in rows)
            ranges.setdefault(str(topic), []).append(slice(start, end))
            start = end
        return ranges

    def sum_by_topic(self, column: str, ranges: dict[str, list[slice]]) -> dict[str, int]:
        """Return the sum of a column for each topic."""
        values = self[column]
        return {topic: sum(sum(values[part]) for part in parts) for topic, parts in ranges.items()}


def led_partitions(
    table: PartitionTable, rows: Sequence[PartitionFacts], kept: PartitionLines | None = None
) -> PartitionTable:
    """Return those of the rows that this node leads: the same table, with its texts, if it leads all of them."""
    return table if all(table["leads"]) else PartitionTable([facts for facts in rows if facts.leads], kept)


_TRAFFIC: Final = (
    ("messagesin", "records_in", "Records that producers appended."),
    ("bytesin", "bytes_in", "Bytes of record batches that producers appended."),
    ("bytesout", "bytes_out", "Bytes of record batches in responses to consumers."),
    ("totalproducerequests", "produces", "Partitions of Produce requests that were appended."),
    ("totalfetchrequests", "fetches", "Partitions that were read for consumers."),
    ("failedproducerequests", "failed_produces", "Partitions of Produce requests that were refused."),
    ("failedfetchrequests", "failed_fetches", "Partitions of Fetch requests that were refused."),
)


def topic_families(snapshot: NodeSnapshot, table: PartitionTable) -> list[Family]:
    """Return the traffic of every topic, and without a label of all of them."""
    families = []
    ranges = table.topic_ranges()
    omitted = snapshot.omitted_replicas
    for name, field, text in _TRAFFIC:
        sums = table.sum_by_topic(field, ranges)
        # As Kafka's exporter: the sum has no label, each topic one.
        total = sum(sums.values()) + getattr(snapshot.removed, field) + getattr(omitted.traffic, field)
        for topic, traffic in omitted.traffic_of_topics.items():
            sums[topic] += getattr(traffic, field)
        totals: list[Sample] = [(f'{{topic="{topic}"}}', value) for topic, value in sums.items()]
        families.append(Family(f"{BROKER_TOPIC}_{name}", "counter", text, [("", total), *totals], rate=True))
    families += [
        Family(
            f"{BROKER_TOPIC}_replicationbytesin",
            "counter",
            "Bytes fetched from leaders.",
            [("", snapshot.replication_bytes_in)],
            rate=True,
        ),
        Family(
            f"{BROKER_TOPIC}_replicationbytesout",
            "counter",
            "Bytes read for followers.",
            [("", snapshot.replication_bytes_out)],
            rate=True,
        ),
    ]
    return families


def replica_families(snapshot: NodeSnapshot, table: PartitionTable, led: PartitionTable) -> list[Family]:
    """Return the counts of the replicas of this node, and of those of them that it leads."""
    omitted = snapshot.omitted_replicas
    counts = (
        ("leadercount", "Partitions led by this broker.", led.count + omitted.led),
        ("partitioncount", "Replicas on this broker.", table.count + omitted.count),
        (
            "underreplicatedpartitions",
            "Partitions led here with fewer replicas in sync than assigned.",
            sum(led["under_replicated"]) + omitted.under_replicated,
        ),
        (
            "underminisrpartitioncount",
            "Partitions led here with fewer replicas in sync than min.insync.replicas.",
            sum(led["under_min_isr"]) + omitted.under_min_isr,
        ),
        (
            "atminisrpartitioncount",
            "Partitions led here with exactly min.insync.replicas in sync.",
            sum(led["at_min_isr"]) + omitted.at_min_isr,
        ),
        ("offlinereplicacount", "Replicas in log directories that failed or are full.", snapshot.offline_replicas),
        ("produceridcount", "Producers with state, over all replicas.", sum(table["producers"]) + omitted.producers),
    )
    return [
        *(Family(f"{REPLICA_MANAGER}_{name}", "gauge", text, [("", value)]) for name, text, value in counts),
        Family(
            f"{REPLICA_MANAGER}_isrshrinks",
            "counter",
            "Times the ISR of a partition led here shrank.",
            [("", snapshot.isr_shrinks)],
            rate=True,
        ),
        Family(
            f"{REPLICA_MANAGER}_isrexpands",
            "counter",
            "Times the ISR of a partition led here expanded.",
            [("", snapshot.isr_expands)],
            rate=True,
        ),
        Family(
            "kafka_server_replicafetchermanager_maxlag",
            "gauge",
            "Most records by which a follower on this broker is behind its leader's high watermark.",
            [('{clientId="Replica"}', snapshot.max_fetcher_lag)],
        ),
        Family(
            "klamm_follower_max_lag_records",
            "gauge",
            "Records by which the slowest follower of a partition led here is behind.",
            [("", snapshot.max_replica_lag)],
        ),
        Family(
            "klamm_partition_transactions_open",
            "gauge",
            "Open transactions in partitions led here; one counts in each of its partitions.",
            [("", sum(led["open_transactions"]) + omitted.open_transactions)],
        ),
    ]


_OF_REPLICAS: Final = (
    ("kafka_log_log_size", "size_bytes", "Bytes of a replica's segments."),
    ("kafka_log_log_logstartoffset", "log_start_offset", "First offset of a replica."),
    ("kafka_log_log_logendoffset", "log_end_offset", "Offset after a replica's last record."),
    ("kafka_log_log_numlogsegments", "segments", "Segments of a replica."),
)
_OF_LEADERS: Final = (
    ("kafka_cluster_partition_replicascount", "replicas", "Replicas of a partition led here."),
    ("kafka_cluster_partition_insyncreplicascount", "isr", "Its replicas in sync."),
    ("kafka_cluster_partition_underreplicated", "under_replicated", "1 if a replica is not in sync."),
    ("kafka_cluster_partition_underminisr", "under_min_isr", "1 below min.insync.replicas."),
    ("kafka_cluster_partition_atminisr", "at_min_isr", "1 at min.insync.replicas."),
    # kafka_exporter's names, each partition from its leader, so that a sum over nodes counts it once.
    ("kafka_topic_partition_current_offset", "high_watermark", "High watermark of a partition."),
    ("kafka_topic_partition_oldest_offset", "log_start_offset", "First offset of a partition."),
    ("kafka_topic_partition_leader", "leader", "Leader of a partition."),
    ("kafka_topic_partition_leader_is_preferred", "is_preferred", "1 if the first replica leads."),
    ("kafka_topic_partition_replicas", "replicas", "Replicas of a partition."),
    ("kafka_topic_partition_in_sync_replica", "isr", "Replicas in sync of a partition."),
    ("kafka_topic_partition_under_replicated_partition", "under_replicated", "1 if a replica is not in sync."),
)


def partition_families(table: PartitionTable, led: PartitionTable) -> list[Family]:
    """Return sizes and offsets of every replica, and the replicas of every partition led here."""
    families = [
        Family(name, "gauge", text, rows=columns.format(column))
        for columns, metrics in ((table, _OF_REPLICAS), (led, _OF_LEADERS))
        for name, column, text in metrics
    ]
    table.keep_lines()
    led.keep_lines()
    return families


def _gauge(name: str, text: str, samples: Iterable[Sample]) -> Family:
    return Family(name, "gauge", text, list(samples))


def group_families(snapshot: NodeSnapshot) -> list[Family]:
    """Return positions and lags of the groups that this node coordinates, by kafka_exporter's names."""
    members: list[Sample] = []
    current: list[Sample] = []
    current_sums: list[Sample] = []
    lags: list[Sample] = []
    lag_sums: list[Sample] = []
    seconds: list[Sample] = []
    topic_seconds: list[Sample] = []
    group_seconds: list[Sample] = []
    for group in snapshot.groups:
        name = escape(group.group_id)
        members.append((f'{{consumergroup="{name}"}}', group.members))
        topics: dict[str, list[int | float]] = {}
        for topic, index, committed, lag, lag_s in group.partitions:
            labels = f'{{consumergroup="{name}",topic="{escape(topic)}",partition="{index}"}}'
            sums = topics.setdefault(topic, [0, 0, -1.0])
            current.append((labels, committed))
            sums[0] += committed
            if lag >= 0:
                lags.append((labels, lag))
                sums[1] += lag
            if lag_s >= 0:
                seconds.append((f'{{group="{name}",topic="{escape(topic)}",partition="{index}"}}', lag_s))
                sums[2] = max(sums[2], lag_s)
        for topic, (committed_sum, lag_sum, oldest) in topics.items():
            labels = f'{{consumergroup="{name}",topic="{escape(topic)}"}}'
            current_sums.append((labels, committed_sum))
            lag_sums.append((labels, lag_sum))
            if oldest >= 0:
                topic_seconds.append((f'{{group="{name}",topic="{escape(topic)}"}}', oldest))
        known = [lag_s for *_, lag_s in group.partitions if lag_s >= 0]
        if known:
            group_seconds.append((f'{{group="{name}"}}', max(known)))
    return [
        _gauge("kafka_consumergroup_members", "Members of a group.", members),
        _gauge("kafka_consumergroup_current_offset", "Committed offset of a group.", current),
        _gauge("kafka_consumergroup_current_offset_sum", "Sum of a group's offsets in a topic.", current_sums),
        _gauge("kafka_consumergroup_lag", "Records that a group has not committed.", lags),
        _gauge("kafka_consumergroup_lag_sum", "Sum of a group's lag in a topic.", lag_sums),
        _gauge("kafka_consumergroup_group_lag_seconds", "Age of the first record not committed; 0 if none.", seconds),
        _gauge("kafka_consumergroup_group_topic_lag_seconds", "Its maximum over a topic.", topic_seconds),
        _gauge("kafka_consumergroup_group_max_lag_seconds", "Its maximum over a group.", group_seconds),
        *_group_counts(snapshot),
    ]


_GROUP_STATES: Final = {
    "PreparingRebalance": "preparingrebalance",
    "CompletingRebalance": "completingrebalance",
    "Stable": "stable",
    "Empty": "empty",
    "Dead": "dead",
    "Assigning": "assigning",
    "Reconciling": "reconciling",
}


def _group_counts(snapshot: NodeSnapshot) -> list[Family]:
    prefix = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    counts = snapshot.group_states
    return [
        Family(prefix, "gauge", "Groups that this broker coordinates.", [("", sum(counts.values()))]),
        *(
            Family(prefix + state, "gauge", f"Those of them in state {name}.", [("", counts.get(name, 0))])
            for name, state in _GROUP_STATES.items()
        ),
    ]
