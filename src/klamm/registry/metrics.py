"""What a registry reports to Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.http.metrics import ServiceMetric

if TYPE_CHECKING:
    from klamm.registry.service import RegistryService


def list_metrics(service: RegistryService) -> Iterable[ServiceMetric]:
    """Return the values of a registry; the last two have the names that dashboards for Confluent's registry read."""
    state, counts = service.state, service.counts
    schemas = state.count_ids()
    leads = int(service.is_leading())
    for name, help_text, gauge in (
        ("leader", "1 if this registry leads.", leads),
        ("ready", "1 if the topic is replayed and a leader is known.", int(service.is_ready)),
        ("schemas", "Schema ids.", schemas),
        ("subjects", "Subjects, deleted ones included.", len(state.subjects)),
        ("contexts", "Contexts.", len(state.context_names())),
        ("log_offset", "Everything before this offset of the topic is replayed.", service.log.position),
    ):
        yield ServiceMetric(name, "gauge", help_text, gauge)
    for name, help_text, count in (
        ("records_replayed_total", "Records read from the topic.", state.records),
        ("records_skipped_total", "Records of the topic that could not be used.", state.skipped),
        ("foreign_writes_total", "Records of other writers while this registry led.", service.log.foreign_writes),
        ("writes_total", "Changes written by this registry.", counts.writes),
        ("forwards_total", "Changes forwarded to the leader.", counts.forwarded),
        ("elections_total", "Elections that this registry took part in.", counts.elections),
        ("fenced_total", "Writes refused because another registry leads.", counts.fenced),
    ):
        yield ServiceMetric(name, "counter", help_text, count)
    yield ServiceMetric("kafka_schema_registry_registered_count", "gauge", "Schema ids.", schemas, is_full_name=True)
    role = "1 if this registry leads, 0 if it follows."
    yield ServiceMetric("kafka_schema_registry_master_slave_role", "gauge", role, leads, is_full_name=True)
