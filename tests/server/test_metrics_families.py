"""The names of metrics, by which dashboards and alerts find them, and the time that formatting takes them."""

import json
import re
from importlib.resources import files
from types import SimpleNamespace

import pytest

from klamm.pipeline.metrics import render_exposition
from klamm.security.core.client_quotas import QuotaUsage
from klamm.server.metrics.families import ScrapeLines, build_families, node_families
from klamm.server.metrics.families.partition_families import PartitionTable, led_partitions, partition_families
from klamm.server.metrics.snapshot import (
    ApiFacts,
    GroupFacts,
    GroupPartition,
    LogDirUse,
    NodeSnapshot,
    PartitionFacts,
    QuotaFacts,
)
from klamm.telemetry.exposition import Naming, RenderedRows, render
from klamm.telemetry.histogram import Histogram

STRIMZI = """
kafka_server_brokertopicmetrics_messagesin_total kafka_server_brokertopicmetrics_bytesin_total
kafka_server_brokertopicmetrics_bytesout_total kafka_server_brokertopicmetrics_totalproducerequests_total
kafka_server_brokertopicmetrics_totalfetchrequests_total kafka_server_brokertopicmetrics_failedproducerequests_total
kafka_server_brokertopicmetrics_failedfetchrequests_total kafka_server_replicamanager_leadercount
kafka_server_replicamanager_partitioncount kafka_server_replicamanager_underreplicatedpartitions
kafka_server_replicamanager_underminisrpartitioncount kafka_cluster_partition_underminisr
kafka_cluster_partition_atminisr kafka_cluster_partition_replicascount kafka_server_replicafetchermanager_maxlag
kafka_controller_kafkacontroller_activecontrollercount kafka_controller_kafkacontroller_offlinepartitionscount
kafka_controller_controllerstats_uncleanleaderelections_total
kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent
kafka_network_socketserver_networkprocessoravgidle_percent kafka_server_socket_server_metrics_connection_count
kafka_log_log_size kafka_log_logmanager_offlinelogdirectorycount kafka_server_raftmetrics_current_leader
kafka_server_raftmetrics_current_state kafka_server_raftmetrics_current_vote kafka_server_raftmetrics_current_epoch
kafka_server_raftmetrics_high_watermark kafka_server_raftmetrics_log_end_offset
kafka_server_raftmetrics_append_records_rate kafka_server_raftmetrics_fetch_records_rate
kafka_server_raftmetrics_commit_latency_avg process_open_fds
"""
"""What Strimzi's dashboards and alerts use (reference/services.md, section 8)."""
KAFKA_EXPORTER = """
kafka_brokers kafka_broker_info kafka_topic_partitions kafka_topic_partition_current_offset
kafka_topic_partition_oldest_offset kafka_topic_partition_in_sync_replica kafka_topic_partition_leader
kafka_topic_partition_leader_is_preferred kafka_topic_partition_replicas
kafka_topic_partition_under_replicated_partition kafka_consumergroup_current_offset kafka_consumergroup_lag
kafka_consumergroup_current_offset_sum kafka_consumergroup_lag_sum kafka_consumergroup_members
"""
CONFLUENT = """
kafka_server_brokertopicmetrics_messagesinpersec kafka_network_requestmetrics_requestspersec
kafka_network_requestmetrics_errorspersec kafka_network_requestmetrics_totaltimems
kafka_network_requestmetrics_localtimems kafka_network_requestmetrics_remotetimems
kafka_network_requestmetrics_requestqueuetimems kafka_network_requestchannel_requestqueuesize
kafka_server_replicamanager_isrshrinkspersec kafka_server_replicamanager_isrexpandspersec
kafka_coordinator_group_groupmetadatamanager_numgroups kafka_coordinator_group_groupmetadatamanager_numgroupsstable
kafka_controller_kafkacontroller_activebrokercount kafka_controller_kafkacontroller_fencedbrokercount
kafka_controller_kafkacontroller_globaltopiccount kafka_controller_kafkacontroller_globalpartitioncount
kafka_log_log_logendoffset kafka_log_log_logstartoffset
"""


def partition(topic: str, index: int, **changes) -> PartitionFacts:
    facts = PartitionFacts(
        topic, index, True, 1, True, 3, 3, 2, 0, 100, 90, 5000, 1, 100, 5000, 70, 9, 8, 1, 2, 3, 1,
    )  # fmt: skip
    return facts._replace(**changes)


def snapshot(partitions: int = 3) -> NodeSnapshot:
    times = Histogram()
    times.observe(0.002)
    read = (times.read(), times.read())
    phases = dict.fromkeys(("queue", "local", "remote", "send"), read)
    return NodeSnapshot(
        node_id=1,
        is_active_controller=True,
        image=image_with_topic(),
        partitions=[partition(f"topic-{index // 100}", index % 100) for index in range(partitions)],
        apis=[ApiFacts("Produce", 5, {7: 2, 999: 1}, phases, read)],
        connections={"PLAINTEXT": 2},
        connection_limit=10,
        refused_connections={"ip_rate": 1},
        quotas=[QuotaFacts("alice", "", "", "producer_byte_rate", 1024.0)],
        quota_usage=[QuotaUsage("producer_byte_rate", "alice", "", "", 512.0, 1500)],
        logins_failed={"SASL": 2},
        logins_succeeded={"SASL": 5},
        tls_failures={("SASL", "handshake"): 3},
        throttled_requests={"produce": 3},
        throttle_ms={"produce": 1500},
        group_states={"Stable": 1},
        groups=[GroupFacts("g", "classic", "Stable", 2, [GroupPartition("topic-0", 0, 40, 50, 12.5)])],
        log_dirs=[LogDirUse("/", True, -1, -1), LogDirUse("/gone", False, -1, -1)],
        omitted={"partitions": 4},
    )


def image_with_topic():
    from klamm.metadata.delta import MetadataDelta
    from klamm.metadata.image import EMPTY_IMAGE
    from klamm.protocol.messages.metadata_records import (
        BrokerEndpoint,
        PartitionRecord,
        RegisterBrokerRecord,
        TopicRecord,
    )

    delta = MetadataDelta(EMPTY_IMAGE)
    endpoint = BrokerEndpoint(name="PLAINTEXT", host="h", port=9092, security_protocol=0)
    delta.replay(RegisterBrokerRecord(broker_id=1, broker_epoch=0, end_points=[endpoint], fenced=False))
    delta.replay(TopicRecord(name="topic-0", topic_id=b"1" * 16))
    delta.replay(
        PartitionRecord(
            partition_id=0, topic_id=b"1" * 16, replicas=[1, 2], isr=[1], leader=-1, leader_epoch=0, partition_epoch=0
        )
    )
    return delta.apply(1, 1)


def served(facts: NodeSnapshot | None = None, naming: Naming = Naming.STRIMZI) -> dict[str, dict[str, float]]:
    """Values by name and labels."""
    names: dict[str, dict[str, float]] = {}
    for line in b"".join(render(build_families(facts or snapshot()), naming=naming)).decode().splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, brace, labels = series.partition("{")
            names.setdefault(name, {})[brace + labels] = float(value)
    return names


@pytest.mark.parametrize("names", [STRIMZI, KAFKA_EXPORTER])
def test_the_names_on_peoples_dashboards_are_served(names):
    assert set(names.split()) - served().keys() == set()


def test_confluents_names_are_served_on_a_switch():
    names = served(naming=Naming.CONFLUENT)
    assert set(CONFLUENT.split()) - names.keys() == set()
    assert "kafka_server_brokertopicmetrics_messagesin_total" not in names


def served_everywhere() -> set[str]:
    """The names of nodes and of a pipeline, as one Prometheus has them."""
    query = {"lag_ms": 2500, "lag_records": 4, "rows_total": 9, "failures": 0}
    text = render_exposition("orders", {"state": "running", "queries": {"totals": query}})
    return served().keys() | {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}


def names_in(expression: str) -> set[str]:
    words = re.findall(r"[a-z_]+(?=[{\[)\s]|$)", re.sub(r"\{[^}]*\}|\"[^\"]*\"", "{", expression))
    return {word for word in words if re.match(r"(kafka|klamm|process)_", word)}


def test_the_dashboard_uses_only_names_that_are_served():
    dashboard = json.loads(files("klamm.telemetry.dashboards").joinpath("grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 30
    assert all(names_in(expression) for expression in expressions)
    assert set().union(*map(names_in, expressions)) - served_everywhere() == set()
    assert any("klamm_pipeline_lag_seconds" in expression for expression in expressions)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_the_alerts_use_only_names_that_are_served():
    text = files("klamm.telemetry.dashboards").joinpath("alerts.yml").read_text()
    expressions = re.findall(r"^ +expr: (.+)$", text, re.MULTILINE)
    assert len(expressions) == len(re.findall(r"- alert: Klamm\w+$", text, re.MULTILINE)) > 10
    assert set().union(*map(names_in, expressions)) - served_everywhere() == set()
    assert any("klamm_pipeline_lag_seconds" in expression for expression in expressions)


def test_the_alerts_are_about_each_cluster_of_klamm():
    text = files("klamm.telemetry.dashboards").joinpath("alerts.yml").read_text()
    rules = dict(re.findall(r"- alert: (Klamm\w+)\n +expr: (.+)$", text, re.MULTILINE))
    # Sums over all that is scraped would add the clusters of one Prometheus.
    assert [name for name, expression in rules.items() if re.search(r"\b(sum|max)(?! by \()", expression)] == []
    # Every exporter serves process_*: only nodes of Klamm have klamm_build_info.
    assert [name for name, expression in rules.items() if "process_" in expression and "klamm_" not in expression] == []
    assert "absent(kafka_controller_kafkacontroller_activecontrollercount)" in rules["KlammNoActiveController"]


def test_the_largest_memory_is_not_below_the_memory(monkeypatch):
    # As the kernel reports it at times: it updates the two at different times.
    usage = SimpleNamespace(ru_maxrss=1)
    monkeypatch.setattr(node_families.resource, "getrusage", lambda _who: usage)
    names = served()
    assert names["process_resident_memory_max_bytes"] == names["process_resident_memory_bytes"]


def test_numbers_come_from_the_snapshot():
    names = served()
    assert names["kafka_server_brokertopicmetrics_messagesin_total"] == {"": 300, '{topic="topic-0"}': 300}
    assert names["kafka_server_replicamanager_underreplicatedpartitions"] == {"": 0}
    assert names["kafka_controller_kafkacontroller_offlinepartitionscount"] == {"": 1}
    assert names["kafka_consumergroup_group_lag_seconds"] == {'{group="g",topic="topic-0",partition="0"}': 12.5}
    assert names["kafka_log_logmanager_offlinelogdirectorycount"] == {"": 1}
    assert names["klamm_quota_throttle_seconds_total"] == {'{quota="produce"}': 1.5}
    assert names["kafka_network_requestmetrics_errors_total"] == {
        '{request="Produce",error="REQUEST_TIMED_OUT"}': 2,
        '{request="Produce",error="999"}': 1,
    }
    assert names["klamm_metrics_omitted"] == {'{kind="partitions"}': 4}
    assert names["klamm_connections_limit"] == {"": 10}
    labels = '{user="alice",client_id="",ip="",quota="producer_byte_rate"}'
    assert names["klamm_quota_rate"] == {labels: 512}
    assert names["klamm_quota_entity_throttle_seconds_total"] == {labels: 1.5}
    failed = "kafka_server_socket_server_metrics_failed_authentication_total"
    assert names[failed] == {'{listener="SASL",networkProcessor="0"}': 5}


def test_partitions_below_their_replicas_and_min_isr_are_counted():
    facts = snapshot()
    facts.partitions = [
        partition("t", 0, isr=1),
        partition("t", 1, isr=2),
        partition("t", 2, leads=False, isr=1),
        partition("t", 3, replicas=1, isr=1),
    ]
    values = served(facts)
    assert values["kafka_server_replicamanager_underreplicatedpartitions"] == {"": 2}
    assert values["kafka_server_replicamanager_underminisrpartitioncount"] == {"": 1}
    assert values["kafka_server_replicamanager_atminisrpartitioncount"] == {"": 2}
    assert values["kafka_server_replicamanager_leadercount"] == {"": 3}
    assert values["kafka_cluster_partition_underminisr"]['{topic="t",partition="0"}'] == 1
    assert '{topic="t",partition="2"}' not in values["kafka_cluster_partition_underminisr"]


def test_topics_are_summed_in_whatever_order_their_partitions_come():
    facts = snapshot()
    facts.partitions = [partition("a", 0), partition("b", 0, records_in=7), partition("a", 1, records_in=5)]
    assert served(facts)["kafka_server_brokertopicmetrics_messagesin_total"] == {
        "": 112, '{topic="a"}': 105, '{topic="b"}': 7,
    }  # fmt: skip


def test_columns_with_the_same_values_share_their_text():
    families = {family.name: family for family in build_families(snapshot())}
    assert families["kafka_topic_partition_replicas"].rows is families["kafka_topic_partition_in_sync_replica"].rows
    assert families["kafka_log_log_size"].rows is not families["kafka_topic_partition_replicas"].rows


def test_a_controller_without_the_broker_role_has_no_metrics_of_replicas():
    facts = snapshot()
    facts.is_broker = False
    names = {family.name for family in build_families(facts)}
    assert "kafka_server_raftmetrics_current_epoch" in names
    assert not any(name.startswith(("kafka_server_replicamanager_leader", "kafka_consumergroup")) for name in names)


def test_lines_of_led_partitions_are_dropped_when_all_are_led() -> None:
    def scrape(*leading: bool) -> None:
        facts = snapshot()
        facts.partitions = [partition("a", index, leads=leads) for index, leads in enumerate(leading)]
        b"".join(render(build_families(facts, kept)))

    kept = ScrapeLines()
    scrape(True, False)
    assert kept.led._lines
    scrape(True, True)
    assert not kept.led._lines
    assert kept.replicas._lines


def test_lines_that_a_scrape_leaves_to_the_next_change_no_text() -> None:
    def facts(topic: str, index: int, end: int, *, leads: bool) -> PartitionFacts:
        return PartitionFacts(
            topic, index, leads, 1, True, 2, 2, 1, 0, end, end, end, 1, end, end, 0, 0, 0, 0, 0, 0, 0
        )  # fmt: skip

    kept = ScrapeLines()
    rendered: RenderedRows = {}
    scrapes = (
        [facts("a", 0, 5, leads=True), facts("a", 1, 5, leads=True)],
        [facts("a", 0, 5, leads=True), facts("a", 1, 5, leads=True)],
        [facts("a", 0, 6, leads=True), facts("a", 1, 5, leads=False)],
        [facts("b", 0, 6, leads=True), facts("a", 1, 5, leads=True)],
        [facts("b", 0, 5, leads=True)],
        [],
    )
    for partitions in scrapes:
        tables = (PartitionTable(partitions), PartitionTable(partitions, kept.replicas))
        fresh, again = (
            partition_families(table, led_partitions(table, partitions, lines))
            for table, lines in zip(tables, (None, kept.led), strict=True)
        )
        assert b"".join(render(again, rendered=rendered)) == b"".join(render(fresh))
