"""Metrics of the node and the cluster: requests, connections, quotas, storage, quorum, controller, the process."""

import os
import resource
import sys
import time
from itertools import islice
from typing import Final

from klamm.model.errors import ErrorCode
from klamm.security.core.client_quotas import QuotaUsage
from klamm.server.metrics import limits
from klamm.server.metrics.snapshot import NodeSnapshot, RaftFacts
from klamm.telemetry.exposition import Family, Sample, format_labels

REQUESTS: Final = "kafka_network_requestmetrics"
CONTROLLER: Final = "kafka_controller_kafkacontroller"
RAFT: Final = "kafka_server_raftmetrics"
_PHASE_NAMES: Final = {
    "queue": "requestqueuetimems",
    "local": "localtimems",
    "remote": "remotetimems",
    "send": "responsesendtimems",
}
"""Kafka's names of the phases."""
UNLIMITED: Final = 2**31 - 1


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(name, "gauge", text, [("", value)])


def _counter(name: str, text: str, value: float) -> Family:
    return Family(name, "counter", text, [("", value)])


def request_families(snapshot: NodeSnapshot) -> list[Family]:
    """Return counts and times of requests by API."""
    counts = Family(f"{REQUESTS}_requests", "counter", "Requests by API.", rate=True)
    counts.samples = [(format_labels([("request", api.name)]), api.requests) for api in snapshot.apis]
    errors = Family(
        f"{REQUESTS}_errors", "counter", "Errors in responses: of requests, topics, partitions, groups.", rate=True
    )
    errors.samples = [
        (format_labels([("request", api.name), ("error", _error_name(code))]), count)
        for api in snapshot.apis
        for code, count in api.errors.items()
    ]
    histogram = Family("klamm_request_seconds", "histogram", "Time of requests by API and phase.")
    total = Family(f"{REQUESTS}_totaltimems", "summary", "Milliseconds from a request to its reply.")
    phases = {
        phase: Family(f"{REQUESTS}_{name}", "summary", f"Milliseconds of the phase {phase!r} of requests.")
        for phase, name in _PHASE_NAMES.items()
    }
    for api in snapshot.apis:
        labels = [("request", api.name)]
        total.add_summary(labels, api.total[1], api.total[0], 1000)
        histogram.add_histogram([*labels, ("phase", "total")], api.total[0])
        for phase, (ever, recent) in api.phases.items():
            if ever.count:
                phases[phase].add_summary(labels, recent, ever, 1000)
                histogram.add_histogram([*labels, ("phase", phase)], ever)
    return [counts, errors, total, *phases.values(), histogram]


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def loop_families(snapshot: NodeSnapshot) -> list[Family]:
    """Return how busy the event loop is, and how long syncs take."""
    turns = Family("klamm_loop_turn_seconds", "histogram", "A sample of the turns of the event loop.")
    turns.add_histogram((), snapshot.turns)
    lag = Family("klamm_loop_lag_seconds", "histogram", "How late the loop ran a timer that is due every second.")
    lag.add_histogram((), snapshot.loop_lag)
    syncs = Family("klamm_log_sync_seconds", "histogram", "Syncs of logs to the device.")
    syncs.add_histogram((), snapshot.syncs)
    idle = 1 - snapshot.loop_busy_share
    return [
        turns,
        lag,
        syncs,
        _gauge("klamm_loop_slowest_turn_seconds", "Longest sampled turn in the current minute.", snapshot.slowest_turn),
        _counter("kafka_log_logflushstats_logflushrateandtimems", "Syncs of logs.", snapshot.syncs.count),
        _gauge(
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
            "Share of the last minute in which the loop's thread used no CPU.",
            idle,
        ),
        _gauge(
            "kafka_network_socketserver_networkprocessoravgidle_percent",
            "The same: one thread reads sockets and handles requests.",
            idle,
        ),
        _gauge(
            "kafka_network_requestchannel_requestqueuesize",
            "Requests that were received and wait: their connections are muted by a quota, or handle an earlier one.",
            snapshot.queued_requests,
        ),
    ]


def connection_families(snapshot: NodeSnapshot) -> list[Family]:
    """Return connections, their limits, and the quotas of clients."""
    open_now: list[Sample] = [
        (format_labels([("listener", name), ("networkProcessor", "0")]), count)
        for name, count in snapshot.connections.items()
    ]
    refused: list[Sample] = [
        (format_labels([("reason", reason)]), count) for reason, count in snapshot.refused_connections.items()
    ]
    limits: list[Sample] = [
        (format_labels([("user", user), ("client_id", client), ("ip", ip), ("quota", kind)]), limit)
        for user, client, ip, kind, limit in snapshot.quotas
    ]
    limit: list[Sample] = [("", snapshot.connection_limit)] if snapshot.connection_limit < UNLIMITED else []
    return [
        Family("kafka_server_socket_server_metrics_connection_count", "gauge", "Open connections.", open_now),
        Family("klamm_connections_limit", "gauge", "max.connections, if it is set.", limit),
        Family("klamm_connections_refused", "counter", "Connections refused, closed or held by a limit.", refused),
        Family("klamm_quota_limit", "gauge", "Quotas of clients: bytes or requests per second, or percent.", limits),
        Family(
            "klamm_quota_rate",
            "gauge",
            "What the clients of a quota use of it now, in its unit.",
            [(_usage_labels(usage), usage.rate) for usage in snapshot.quota_usage if usage.rate is not None],
        ),
        Family(
            "klamm_quota_entity_throttle_seconds",
            "counter",
            "Time for which connections were muted because of a quota.",
            [(_usage_labels(usage), usage.throttled_ms / 1000) for usage in snapshot.quota_usage],
        ),
        Family(
            "klamm_quota_throttled_requests",
            "counter",
            "Requests above a quota.",
            [(format_labels([("quota", kind)]), count) for kind, count in snapshot.throttled_requests.items()],
        ),
        Family(
            "klamm_quota_throttle_seconds",
            "counter",
            "Time for which connections were muted.",
            [(format_labels([("quota", kind)]), ms / 1000) for kind, ms in snapshot.throttle_ms.items()],
        ),
        Family(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "gauge",
            "Requests that wait.",
            [
                ('{delayedOperation="Fetch"}', snapshot.delayed_fetches),
                ('{delayedOperation="Produce"}', snapshot.delayed_produces),
            ],
        ),
        _gauge(
            "kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions.", snapshot.fetch_sessions
        ),
    ]


def _usage_labels(usage: QuotaUsage) -> str:
    parts = (("user", usage.user), ("client_id", usage.client_id), ("ip", usage.ip), ("quota", usage.quota))
    return format_labels(parts)


def login_families(snapshot: NodeSnapshot) -> list[Family]:
    """Return logins and TLS handshakes by listener, with Kafka's names where it has one."""
    prefix = "kafka_server_socket_server_metrics"
    failed = dict(snapshot.logins_failed)
    # As in Kafka, a handshake that fails is a failed authentication.
    for (listener, _), count in snapshot.tls_failures.items():
        failed[listener] = failed.get(listener, 0) + count
    return [
        Family(
            f"{prefix}_successful_authentication",
            "counter",
            "Logins by SASL.",
            _by_listener(snapshot.logins_succeeded),
        ),
        Family(
            f"{prefix}_failed_authentication", "counter", "Logins and TLS handshakes that failed.", _by_listener(failed)
        ),
        Family(
            "klamm_tls_handshake_failures",
            "counter",
            "TLS handshakes that failed, by reason.",
            [
                (format_labels([("listener", listener), ("reason", reason)]), count)
                for (listener, reason), count in snapshot.tls_failures.items()
            ],
        ),
        _counter(
            "klamm_login_evictions",
            "Connections closed before their login because all of those used too much memory.",
            snapshot.logins_evicted,
        ),
    ]


def _by_listener(counts: dict[str, int]) -> list[Sample]:
    return [(format_labels([("listener", name), ("networkProcessor", "0")]), count) for name, count in counts.items()]


def storage_families(snapshot: NodeSnapshot) -> list[Family]:
    """Return log directories and the cleaner; the space on devices is read here, in a thread."""
    total: list[Sample] = []
    usable: list[Sample] = []
    for log_dir in snapshot.log_dirs:
        labels = format_labels([("path", log_dir.path)])
        if log_dir.online:
            try:
                space = os.statvfs(log_dir.path)
            except OSError:
                continue
            total.append((labels, space.f_blocks * space.f_frsize))
            usable.append((labels, space.f_bavail * space.f_frsize))
    offline = sum(not log_dir.online for log_dir in snapshot.log_dirs)
    return [
        _gauge("kafka_log_logmanager_offlinelogdirectorycount", "Log directories that failed.", offline),
        Family("klamm_log_dir_total_bytes", "gauge", "Size of the device of a log directory.", total),
        Family("klamm_log_dir_usable_bytes", "gauge", "Free space on it.", usable),
        _gauge(
            "kafka_log_logcleanermanager_max_dirty_percent",
            "Largest share of bytes to clean in a compacted log.",
            snapshot.cleaner_max_dirty_percent,
        ),
        _gauge(
            "kafka_log_logcleanermanager_uncleanable_partitions_count",
            "Logs that are damaged and not compacted.",
            snapshot.cleaner_damaged,
        ),
        _gauge("klamm_cleaner_running", "Passes of the cleaner that are under way.", snapshot.cleaner_running),
        _counter("klamm_cleaner_passes", "Passes of the cleaner that have ended.", snapshot.cleaner_passes),
    ]


def transaction_families(snapshot: NodeSnapshot) -> list[Family]:
    """Return the transactions that this node coordinates, and its audit records."""
    return [
        _gauge("klamm_transactional_ids", "Transactional ids coordinated here.", snapshot.transactional_ids),
        _gauge(
            "klamm_transactions_open", "Transactions without an outcome on all partitions.", snapshot.transactions_open
        ),
        _gauge(
            "klamm_transactions_stuck",
            "Those a minute beyond their timeout, or without markers.",
            snapshot.transactions_stuck,
        ),
        _gauge(
            "klamm_transactions_oldest_seconds", "Age of the oldest open transaction.", snapshot.oldest_transaction_s
        ),
        _counter("klamm_audit_dropped", "Denials that were not written to the audit topic.", snapshot.audit_dropped),
        _gauge("klamm_audit_queued", "Denials that wait to be written.", snapshot.audit_queued),
    ]


def cluster_families(snapshot: NodeSnapshot) -> list[Family]:
    """Return the controller's view; as in Kafka, counts of the cluster are 0 where it is not active."""
    image = snapshot.image
    active = snapshot.is_active_controller
    partitions = offline = not_preferred = reassigning = 0
    if active:
        for _, _, partition in image.topics.partitions():
            partitions += 1
            offline += not partition.has_leader
            not_preferred += partition.leader != partition.preferred_replica
            reassigning += partition.is_reassigning
    alive = len(image.cluster.alive())
    addresses: list[Sample] = [
        (format_labels([("id", broker.id), ("address", f"{endpoint.host}:{endpoint.port}")]), 1)
        for broker in image.cluster.alive()
        for endpoint in list(broker.endpoints.values())[:1]
    ]
    topics: list[Sample] = []
    if active:
        served = islice(image.topics.by_name.values(), limits.TOPICS_MAX)
        topics = [(f'{{topic="{topic.name}"}}', len(topic.partitions)) for topic in served]
    return [
        _gauge(f"{CONTROLLER}_activecontrollercount", "1 on the active controller.", int(active)),
        _gauge(f"{CONTROLLER}_offlinepartitionscount", "Partitions without a leader.", offline),
        _gauge(
            f"{CONTROLLER}_preferredreplicaimbalancecount", "Partitions not led by their first replica.", not_preferred
        ),
        _gauge(f"{CONTROLLER}_globaltopiccount", "Topics.", len(image.topics) if active else 0),
        _gauge(f"{CONTROLLER}_globalpartitioncount", "Partitions.", partitions),
        _gauge(f"{CONTROLLER}_activebrokercount", "Brokers that are not fenced.", alive if active else 0),
        _gauge(
            f"{CONTROLLER}_fencedbrokercount", "Fenced brokers.", len(image.cluster.brokers) - alive if active else 0
        ),
        Family(
            "kafka_controller_controllerstats_uncleanleaderelections",
            "counter",
            "Unclean elections that this controller decided.",
            [("", snapshot.unclean_elections)],
            rate=True,
        ),
        _gauge("kafka_server_replicamanager_reassigningpartitions", "Partitions being reassigned.", reassigning),
        _gauge("kafka_server_kafkaserver_brokerstate", "3 is running, 6 controlled shutdown.", snapshot.broker_state),
        _gauge("kafka_brokers", "Brokers that are not fenced.", alive),
        Family("kafka_broker_info", "gauge", "Addresses of brokers.", addresses),
        Family("kafka_topic_partitions", "gauge", "Partitions of a topic, from the active controller.", topics),
        *raft_families(snapshot.raft),
    ]


def raft_families(raft: RaftFacts) -> list[Family]:
    """Return the state of this member of the metadata quorum."""
    commits = raft.commit_seconds
    average_ms = commits.sum / commits.count * 1000 if commits.count else 0.0
    state: list[Sample] = [(format_labels([("current_state", raft.role)]), 1)]
    return [
        _gauge(f"{RAFT}_current_leader", "Leader of the quorum, -1 if unknown.", raft.leader),
        _gauge(f"{RAFT}_current_vote", "Vote of this member, -1 for none.", raft.vote),
        _gauge(f"{RAFT}_current_epoch", "Epoch of the quorum.", raft.epoch),
        Family(f"{RAFT}_current_state", "gauge", "Role of this member.", state),
        _gauge(f"{RAFT}_high_watermark", "Committed end of the metadata log.", raft.high_watermark),
        _gauge(f"{RAFT}_log_end_offset", "End of this member's metadata log.", raft.log_end_offset),
        _gauge(f"{RAFT}_number_of_voters", "Voters.", raft.voters),
        _gauge(f"{RAFT}_number_of_observers", "Observers, on the leader.", raft.observers),
        _gauge(f"{RAFT}_append_records_rate", "Records per second appended as the leader.", raft.append_rate),
        _gauge(f"{RAFT}_fetch_records_rate", "Records per second fetched from the leader.", raft.fetch_rate),
        _gauge(f"{RAFT}_commit_latency_avg", "Average milliseconds until a proposal is applied.", average_ms),
    ]


def otlp_families(snapshot: NodeSnapshot) -> list[Family]:
    """Return what the export by OTLP has done; nothing without one."""
    counts = snapshot.otlp
    if counts is None:
        return []
    points = Family("klamm_otlp_points", "counter", "Data points of OTLP exports.")
    points.samples = [
        ('{result="sent"}', counts.points - counts.rejected_points),
        ('{result="rejected"}', counts.rejected_points),
        ('{result="omitted"}', counts.omitted_points),
    ]
    return [
        _counter("klamm_otlp_exports", "Exports that the OTLP collector has taken.", counts.exports),
        _counter("klamm_otlp_failures", "Exports by OTLP that failed.", counts.failures),
        points,
    ]


def process_families(snapshot: NodeSnapshot) -> list[Family]:
    """Return memory, files and CPU of this process; read here, in a thread."""
    page = resource.getpagesize()
    with open("/proc/self/statm", encoding="ascii") as file:
        virtual, resident = (int(number) * page for number in file.read().split()[:2])
    # The kernel updates the two at different times, so that its maximum may be below the memory of now.
    resident_max = max(resident, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    build = format_labels(
        [("version", snapshot.version), ("node_id", snapshot.node_id), ("cluster_id", snapshot.cluster_id)]
    )
    omitted: list[Sample] = [(format_labels([("kind", kind)]), count) for kind, count in snapshot.omitted.items()]
    return [
        Family("klamm_build_info", "gauge", "Version and identity of this node.", [(build, 1)]),
        _gauge("klamm_uptime_seconds", "Time since the node was made.", snapshot.uptime_s),
        Family("klamm_metrics_omitted", "gauge", "Series left out because there are too many.", omitted),
        _gauge("process_resident_memory_bytes", "Resident memory.", resident),
        _gauge("process_virtual_memory_bytes", "Virtual memory.", virtual),
        _gauge("process_resident_memory_max_bytes", "Largest resident memory so far.", resident_max),
        _gauge("process_open_fds", "Open descriptors.", len(os.listdir("/proc/self/fd"))),
        _gauge("process_max_fds", "Limit of descriptors.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        _counter("process_cpu_seconds", "CPU time.", time.process_time()),
        _gauge("process_start_time_seconds", "Start of the node.", snapshot.now_ms / 1000 - snapshot.uptime_s),
        Family("python_info", "gauge", "Python.", [(format_labels([("version", sys.version.split()[0])]), 1)]),
    ]
