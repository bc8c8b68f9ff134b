"""Plain values of a node at one moment: what the loop copies, and threads format."""

from dataclasses import dataclass, field
from typing import NamedTuple

from klamm.metadata.image import EMPTY_IMAGE, MetadataImage
from klamm.security.core.client_quotas import QuotaUsage
from klamm.telemetry.histogram import EMPTY, Distribution


class PartitionFacts(NamedTuple):
    """A replica on this node."""

    topic: str
    partition: int
    leads: bool
    leader: int
    is_preferred: bool
    """Whether the leader is the first of the replicas."""
    replicas: int
    isr: int
    min_isr: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    size_bytes: int
    segments: int
    records_in: int
    bytes_in: int
    bytes_out: int
    produces: int
    fetches: int
    failed_produces: int
    failed_fetches: int
    producers: int
    open_transactions: int


class GroupPartition(NamedTuple):
    """The position of a group in a partition; -1 for what is not known here."""

    topic: str
    partition: int
    committed: int
    lag: int = -1
    lag_seconds: float = -1.0


class GroupFacts(NamedTuple):
    """A group that this node coordinates."""

    group_id: str
    kind: str
    state: str
    members: int
    partitions: list[GroupPartition]


class ApiFacts(NamedTuple):
    """The requests of one API: distributions since the start, and of the last minute or two."""

    name: str
    requests: int
    errors: dict[int, int]
    phases: dict[str, tuple[Distribution, Distribution]]
    total: tuple[Distribution, Distribution]


@dataclass(slots=True)
class RaftFacts:
    """This member of the metadata quorum."""

    role: str = "unattached"
    leader: int = -1
    vote: int = -1
    epoch: int = 0
    high_watermark: int = 0
    log_end_offset: int = 0
    voters: int = 0
    observers: int = 0
    append_rate: float = 0.0
    """Records per second that this member appended as the leader."""
    fetch_rate: float = 0.0
    """Records per second that it fetched as a follower."""
    commit_seconds: Distribution = EMPTY


@dataclass(slots=True)
class Totals:
    """The traffic of replicas without metrics of their own."""

    records_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    produces: int = 0
    quick_produces: int = 0
    fetches: int = 0
    failed_produces: int = 0
    failed_fetches: int = 0

    def add(self, facts: PartitionFacts) -> None:
        """Add a replica, whose quick requests are among its `produces`."""
        self.records_in += facts.records_in
        self.bytes_in += facts.bytes_in
        self.bytes_out += facts.bytes_out
        self.produces += facts.produces
        self.fetches += facts.fetches
        self.failed_produces += facts.failed_produces
        self.failed_fetches += facts.failed_fetches


@dataclass(slots=True)
class OmittedReplicas:
    """The replicas beyond the limit: they are counted in the totals of the node and of topics that have others."""

    count: int = 0
    led: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    producers: int = 0
    open_transactions: int = 0
    traffic: Totals = field(default_factory=Totals)
    traffic_of_topics: dict[str, Totals] = field(default_factory=dict)
    """Of topics with a replica that is not omitted."""

    def add(self, facts: PartitionFacts) -> None:
        """Count a replica."""
        self.count += 1
        self.producers += facts.producers
        self.traffic.add(facts)
        topic = self.traffic_of_topics.get(facts.topic)
        if topic is not None:
            topic.add(facts)
        if facts.leads:
            # min.insync.replicas may be more than a topic has replicas.
            required = min(facts.min_isr, facts.replicas)
            self.led += 1
            self.under_replicated += facts.isr < facts.replicas
            self.under_min_isr += facts.isr < required
            self.at_min_isr += facts.isr == required
            self.open_transactions += facts.open_transactions


class QuotaFacts(NamedTuple):
    """A quota of the metadata log."""

    user: str
    client_id: str
    ip: str
    kind: str
    limit: float


@dataclass(slots=True)
class OtlpCounts:
    """What the export by OTLP has done since the start; its thread alone changes it."""

    exports: int = 0
    failures: int = 0
    points: int = 0
    rejected_points: int = 0
    omitted_points: int = 0


class LogDirUse(NamedTuple):
    """A log directory; -1 for sizes that are not known."""

    path: str
    online: bool
    total_bytes: int
    usable_bytes: int


@dataclass(slots=True)
class NodeSnapshot:
    """A node at one moment."""

    node_id: int = 0
    cluster_id: str = ""
    version: str = ""
    now_ms: int = 0
    uptime_s: float = 0.0
    is_broker: bool = True
    broker_state: int = 0
    """Kafka's number: 1 starting, 2 recovering, 3 running, 6 controlled shutdown."""
    image: MetadataImage = EMPTY_IMAGE
    partitions: list[PartitionFacts] = field(default_factory=list)
    omitted_replicas: OmittedReplicas = field(default_factory=OmittedReplicas)
    removed: Totals = field(default_factory=Totals)
    """Of replicas that this node does not have any more, so that its totals never decrease."""
    offline_replicas: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    max_replica_lag: int = 0
    max_fetcher_lag: int = 0
    apis: list[ApiFacts] = field(default_factory=list)
    turns: Distribution = EMPTY
    slowest_turn: float = 0.0
    loop_lag: Distribution = EMPTY
    loop_busy_share: float = 0.0
    syncs: Distribution = EMPTY
    connections: dict[str, int] = field(default_factory=dict)
    connection_limit: int = 0
    refused_connections: dict[str, int] = field(default_factory=dict)
    queued_requests: int = 0
    logins_succeeded: dict[str, int] = field(default_factory=dict)
    logins_failed: dict[str, int] = field(default_factory=dict)
    """Both by listener."""
    logins_evicted: int = 0
    tls_failures: dict[tuple[str, str], int] = field(default_factory=dict)
    """By listener and reason."""
    quotas: list[QuotaFacts] = field(default_factory=list)
    quota_usage: list[QuotaUsage] = field(default_factory=list)
    throttled_requests: dict[str, int] = field(default_factory=dict)
    throttle_ms: dict[str, int] = field(default_factory=dict)
    delayed_fetches: int = 0
    delayed_produces: int = 0
    fetch_sessions: int = 0
    groups: list[GroupFacts] = field(default_factory=list)
    group_states: dict[str, int] = field(default_factory=dict)
    """How many groups are in each state, also those that are omitted."""
    transactional_ids: int = 0
    transactions_open: int = 0
    transactions_stuck: int = 0
    oldest_transaction_s: float = 0.0
    cleaner_running: int = 0
    cleaner_damaged: int = 0
    cleaner_max_dirty_percent: float = 0.0
    cleaner_passes: int = 0
    log_dirs: list[LogDirUse] = field(default_factory=list)
    raft: RaftFacts = field(default_factory=RaftFacts)
    is_active_controller: bool = False
    unclean_elections: int = 0
    audit_dropped: int = 0
    audit_queued: int = 0
    otlp: OtlpCounts | None = None
    omitted: dict[str, int] = field(default_factory=dict)
    """By kind: what has no metrics of its own, because there is too much of it (`limits`)."""

    def omit(self, kind: str, count: int = 1) -> None:
        """Count what is left out."""
        self.omitted[kind] = self.omitted.get(kind, 0) + count

    def omit_partition(self, facts: PartitionFacts) -> None:
        """Count a replica in the totals only."""
        omitted = self.omitted_replicas
        if not omitted.count:
            omitted.traffic_of_topics = {kept.topic: Totals() for kept in self.partitions}
        omitted.add(facts)
        self.omit("partitions")
