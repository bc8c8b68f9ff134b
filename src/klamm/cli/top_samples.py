"""What `klamm top` computes from two scrapes of the nodes: rates, lags, slow requests; pure but for `fetch`."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

NAMES: Final = (
    "klamm_build_info",
    "kafka_server_brokertopicmetrics_messagesin",
    "kafka_server_brokertopicmetrics_bytesin",
    "kafka_server_brokertopicmetrics_bytesout",
    "kafka_server_replicamanager_leadercount",
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    "kafka_server_socket_server_metrics_connection_count",
    "kafka_controller_kafkacontroller_activecontrollercount",
    "kafka_network_requestmetrics_requests",
    "kafka_network_requestmetrics_totaltimems",
    "kafka_consumergroup_lag_sum",
    "kafka_consumergroup_members",
    "kafka_consumergroup_group_max_lag_seconds",
    "process_resident_memory_bytes",
)
"""The metrics that are needed: the many of single partitions are not among them."""
FETCH_SECONDS_MAX: Final = 5.0

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of one node at one time."""

    address: str
    at_s: float
    samples: Mapping[str, Mapping[Labels, float]]

    def value(self, name: str, **labels: str) -> float:
        """Return a sample; 0 if there is none."""
        return self.samples.get(name, {}).get(tuple(sorted(labels.items())), 0.0)

    def total(self, name: str) -> float:
        """Return the sum of all samples of a name."""
        return sum(self.samples.get(name, {}).values())


def parse_samples(text: str) -> dict[str, dict[Labels, float]]:
    """Read Prometheus' text format: samples by name and labels."""
    samples: dict[str, dict[Labels, float]] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is not None:
            labels = tuple(sorted((name, _unescape(value)) for name, value in _LABEL.findall(match[2] or "")))
            # Confluent's spelling of a rate has another ending.
            name = match[1].removesuffix("persec").removesuffix("_total")
            samples.setdefault(name, {})[labels] = float(match[3])
    return samples


def _unescape(value: str) -> str:
    return re.sub(r"\\[\\\"n]", lambda match: _ESCAPES[match[0]], value)


def fetch(address: str, now_s: float) -> Scrape:
    """Scrape a node; OSError or ValueError if it does not answer with metrics."""
    query = "&".join(f"name[]={quote(name)}" for name in NAMES)
    connection = http.client.HTTPConnection(address, timeout=FETCH_SECONDS_MAX)
    try:
        connection.request("GET", f"/metrics?{query}", headers={"Accept": "text/plain"})
        response = connection.getresponse()
        body = response.read().decode()
    except http.client.HTTPException as error:
        raise ValueError(f"{address} does not speak HTTP") from error
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(f"{address} answers {response.status}: {body.strip()[:200]}")
    return Scrape(address, now_s, parse_samples(body))


def _rate(before: Scrape, after: Scrape, name: str, **labels: str) -> float:
    moved = after.value(name, **labels) - before.value(name, **labels)
    # A node that was restarted counts from 0 again.
    return max(moved, 0.0) / max(after.at_s - before.at_s, 1e-9)


def node_rows(pairs: Sequence[tuple[Scrape, Scrape]]) -> list[dict[str, Any]]:
    """Return a row for each node."""
    rows = []
    for before, after in pairs:
        build = next(iter(after.samples.get("klamm_build_info", {})), ())
        traffic = "kafka_server_brokertopicmetrics_"
        requests = sum(
            _rate(before, after, "kafka_network_requestmetrics_requests", **dict(labels))
            for labels in after.samples.get("kafka_network_requestmetrics_requests", {})
        )
        rows.append(
            {
                "node": dict(build).get("node_id", "?"),
                "address": after.address,
                "controller": bool(after.value("kafka_controller_kafkacontroller_activecontrollercount")),
                "records_per_s": round(_rate(before, after, traffic + "messagesin"), 1),
                "bytes_in_per_s": round(_rate(before, after, traffic + "bytesin")),
                "bytes_out_per_s": round(_rate(before, after, traffic + "bytesout")),
                "requests_per_s": round(requests, 1),
                "busy_percent": round(
                    100 * (1 - after.value("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"))
                ),
                "connections": int(after.total("kafka_server_socket_server_metrics_connection_count")),
                "leaders": int(after.value("kafka_server_replicamanager_leadercount")),
                "under_replicated": int(after.value("kafka_server_replicamanager_underreplicatedpartitions")),
                "memory_bytes": int(after.value("process_resident_memory_bytes")),
                "no_answer_since_timestamp_ms": None,
            }
        )
    return rows


def silent_node_row(address: str, last: Scrape | None, since_ms: int) -> dict[str, Any]:
    """Return the row of a node that does not answer: the fields of `node_rows` without numbers."""
    # The node id is known from an earlier scrape, if there was one.
    scrape = Scrape(address, 0.0, {} if last is None else last.samples)
    (row,) = node_rows([(scrape, scrape)])
    known = {"node": row["node"] if last is not None else None, "address": address}
    return {**dict.fromkeys(row), **known, "no_answer_since_timestamp_ms": since_ms}


def topic_rows(pairs: Sequence[tuple[Scrape, Scrape]]) -> list[dict[str, Any]]:
    """Return the traffic of topics over all nodes, the busiest first."""
    traffic = "kafka_server_brokertopicmetrics_"
    fields = {"records_per_s": "messagesin", "bytes_in_per_s": "bytesin", "bytes_out_per_s": "bytesout"}
    topics: dict[str, dict[str, Any]] = {}
    for before, after in pairs:
        for labels in after.samples.get(traffic + "messagesin", {}):
            topic = dict(labels).get("topic")
            if topic is not None:
                row = topics.setdefault(topic, {"topic": topic, **dict.fromkeys(fields, 0.0)})
                for field, name in fields.items():
                    row[field] += _rate(before, after, traffic + name, topic=topic)
    rows = [{**row, **{field: round(row[field], 1) for field in fields}} for row in topics.values()]
    return sorted(rows, key=lambda row: (-row["bytes_in_per_s"] - row["bytes_out_per_s"], row["topic"]))


def group_rows(scrapes: Sequence[Scrape]) -> list[dict[str, Any]]:
    """Return the lag of groups over all nodes, the latest in seconds first."""
    rows: dict[str, dict[str, Any]] = {}
    for scrape in scrapes:
        for labels, members in scrape.samples.get("kafka_consumergroup_members", {}).items():
            group = dict(labels)["consumergroup"]
            rows[group] = {"group": group, "members": int(members), "lag": 0, "lag_seconds": None}
        for labels, lag in scrape.samples.get("kafka_consumergroup_lag_sum", {}).items():
            rows[dict(labels)["consumergroup"]]["lag"] += int(lag)
        for labels, seconds in scrape.samples.get("kafka_consumergroup_group_max_lag_seconds", {}).items():
            rows[dict(labels)["group"]]["lag_seconds"] = round(seconds, 1)
    return sorted(rows.values(), key=lambda row: (-(row["lag_seconds"] or 0), -row["lag"], row["group"]))


def request_rows(pairs: Sequence[tuple[Scrape, Scrape]]) -> list[dict[str, Any]]:
    """Return the APIs that were called between the scrapes, the slowest of any node first."""
    rows: dict[str, dict[str, Any]] = {}
    for before, after in pairs:
        for labels in after.samples.get("kafka_network_requestmetrics_requests", {}):
            api = dict(labels)["request"]
            rate = _rate(before, after, "kafka_network_requestmetrics_requests", request=api)
            if rate:
                row = rows.setdefault(api, {"request": api, "per_s": 0.0, "p50_ms": 0.0, "p99_ms": 0.0})
                row["per_s"] = round(row["per_s"] + rate, 1)
                for field, share in (("p50_ms", "0.5"), ("p99_ms", "0.99")):
                    time_ms = after.value("kafka_network_requestmetrics_totaltimems", request=api, quantile=share)
                    row[field] = round(max(row[field], time_ms), 2)
    return sorted(rows.values(), key=lambda row: (-row["p99_ms"], row["request"]))
