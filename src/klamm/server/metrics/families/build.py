"""All metrics of a snapshot; runs in a thread, and reads nothing of the node but the snapshot."""

from klamm.server.metrics.families.node_families import (
    cluster_families,
    connection_families,
    login_families,
    loop_families,
    otlp_families,
    process_families,
    request_families,
    storage_families,
    transaction_families,
)
from klamm.server.metrics.families.partition_families import (
    PartitionLines,
    PartitionTable,
    group_families,
    led_partitions,
    partition_families,
    replica_families,
    topic_families,
)
from klamm.server.metrics.snapshot import NodeSnapshot
from klamm.telemetry.exposition import Family


class ScrapeLines:
    """What one scrape leaves to the next: the lines of all replicas, and of those that the node leads."""

    def __init__(self) -> None:
        self.replicas = PartitionLines()
        self.led = PartitionLines()


def build_families(snapshot: NodeSnapshot, kept: ScrapeLines | None = None) -> list[Family]:
    """Return the metrics; a node without the broker role has none of replicas and groups."""
    families = [
        *process_families(snapshot),
        *otlp_families(snapshot),
        *cluster_families(snapshot),
        *request_families(snapshot),
        *loop_families(snapshot),
        *connection_families(snapshot),
        *login_families(snapshot),
        *storage_families(snapshot),
    ]
    if snapshot.is_broker:
        kept = kept or ScrapeLines()
        table = PartitionTable(snapshot.partitions, kept.replicas)
        led = led_partitions(table, snapshot.partitions, kept.led)
        if led is table:
            # It leads all of them: these lines are gone. A new object, as another thread may format with the old one.
            kept.led = PartitionLines()
        families += [
            *replica_families(snapshot, table, led),
            *topic_families(snapshot, table),
            *transaction_families(snapshot),
            *group_families(snapshot),
            *partition_families(table, led),
        ]
    return families
