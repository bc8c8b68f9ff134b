"""Metrics of a running pipeline for Prometheus: its status in the exposition format, and the listener for scrapes.

`render_exposition` is pure and takes the status that `klamm pipeline show` reads, so both report the same numbers. The
listener is that of nodes; it is on the loopback interface unless an address is given.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.telemetry.http_listener import ScrapeListener, ScrapeRequest, ScrapeResponse

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK: Final = "127.0.0.1"
_LABEL_CHARS_MAX: Final = 200
PARTITION_SERIES_MAX: Final = 1_000
"""Partitions of all queries of a pipeline that have a series of their own; those of a topic beyond it are summed."""
OTHER_PARTITIONS: Final = "other"
"""The label of the sum."""


@dataclass(frozen=True, slots=True)
class _Metric:
    """A metric of a query: its name in the exposition, and its key in the status."""

    name: str
    kind: str
    help_text: str
    key: str
    scale: float = 1.0


_QUERY: Final = (
    _Metric("rows_total", "counter", "Rows read.", "rows_total"),
    _Metric("rows_per_second", "gauge", "Rows read per second of work, in the last batch.", "rows_per_s"),
    _Metric("batches_total", "counter", "Batches done.", "batches_total"),
    _Metric("lag_records", "gauge", "Records that are there and not read yet.", "lag_records"),
    _Metric("lag_seconds", "gauge", "Age of what is not read yet; 0 when everything is read.", "lag_ms", 0.001),
    _Metric("watermark_timestamp_seconds", "gauge", "Rows before this time are late.", "watermark_ms", 0.001),
    _Metric("state_rows", "gauge", "Rows in the query's state.", "state_rows"),
    _Metric("state_bytes", "gauge", "Memory its state takes.", "state_bytes"),
    _Metric("lost_records_total", "counter", "Records removed before they were read.", "lost_records"),
    _Metric("slot_lag_bytes", "gauge", "Log that PostgreSQL keeps for the slot of a capture.", "slot_lag_bytes"),
    _Metric("late_rows_total", "counter", "Rows left out because the watermark had passed them.", "late_rows"),
    _Metric("last_batch_duration_seconds", "gauge", "How long the last batch took.", "batch_ms", 0.001),
    _Metric("last_batch_timestamp_seconds", "gauge", "When the last batch was done.", "batch_done_ms", 0.001),
    _Metric("restarts_total", "counter", "How often the query failed and was started again.", "restarts"),
    _Metric("failures_in_a_row", "gauge", "Failures since the last batch that went well.", "failures"),
    _Metric("last_error_timestamp_seconds", "gauge", "When the query last failed.", "error_ms", 0.001),
)


def render_exposition(name: str, status: Mapping[str, Any]) -> str:
    """Return a pipeline's status in Prometheus' text format; numbers that are not known are left out."""
    labels = {"pipeline": name}
    lines = [
        *_header_lines("running", "gauge", "Whether the pipeline runs."),
        _sample("running", labels, 1 if status.get("state") == "running" else 0),
    ]
    if status.get("started_ms") is not None:
        lines += _header_lines("start_timestamp_seconds", "gauge", "When it was started.")
        lines.append(_sample("start_timestamp_seconds", labels, status["started_ms"] / 1000))
    queries: Mapping[str, Mapping[str, Any]] = status.get("queries") or {}
    # All samples of a metric have to follow its HELP and TYPE lines without others in between.
    for metric in _QUERY:
        samples = [
            _sample(metric.name, {**labels, "query": query}, values[metric.key] * metric.scale)
            for query, values in queries.items()
            if values.get(metric.key) is not None
        ]
        lines += [*_header_lines(metric.name, metric.kind, metric.help_text), *samples] if samples else []
    lines += _partition_lag_lines(labels, queries)
    lines += _duration_lines(labels, queries)
    bad_records = [
        _sample("bad_records_total", {**labels, "query": query, "policy": policy}, count)
        for query, values in queries.items()
        for policy, count in (values.get("bad_records") or {}).items()
    ]
    lines += (
        [*_header_lines("bad_records_total", "counter", "Records that could not be read, by policy."), *bad_records]
        if bad_records
        else []
    )
    errors = [
        _sample("last_error_info", {**labels, "query": query, "error": str(values["error_gist"])}, 1)
        for query, values in queries.items()
        if values.get("error_gist")
    ]
    lines += [*_header_lines("last_error_info", "gauge", "What the query last failed with."), *errors] if errors else []
    return "\n".join(lines) + "\n"


def share_series(counts: Mapping[str, int], series_max: int) -> dict[str, int]:
    """Return how many partitions of each query get a series: all of small queries, equal shares of large ones."""
    shares = {}
    left = series_max
    # The smallest first: what it does not need is for the others.
    for index, query in enumerate(sorted(counts, key=counts.__getitem__)):
        shares[query] = min(counts[query], left // (len(counts) - index))
        left -= shares[query]
    return shares


def _partition_lag_lines(pipeline_labels: Mapping[str, str], queries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lags: dict[str, Mapping[str, Mapping[str, int]]] = {
        query: values["partition_lag_records"]
        for query, values in queries.items()
        if values.get("partition_lag_records")
    }
    if not lags:
        return []
    counts = {query: sum(map(len, topics.values())) for query, topics in lags.items()}
    shares = share_series(counts, PARTITION_SERIES_MAX)
    samples, ages, omitted = [], [], []
    for query, topics in lags.items():
        labels = {**pipeline_labels, "query": query}
        for topic, partition, records, age_ms in _lag_rows(
            topics, queries[query].get("partition_lag_ms") or {}, shares[query]
        ):
            labels_of_partition = {**labels, "topic": topic, "partition": partition}
            samples.append(_sample("partition_lag_records", labels_of_partition, records))
            if age_ms is not None:
                ages.append(_sample("partition_lag_seconds", labels_of_partition, age_ms * 0.001))
        omitted.append(_sample("partition_lag_omitted", labels, counts[query] - shares[query]))
    records_text = "Records of a partition that are not read yet; the sum of those without a series."
    ages_text = (
        "Age of a partition's first unread record, where it was measured; the largest of those without a series."
    )
    return [
        *_header_lines("partition_lag_records", "gauge", records_text),
        *samples,
        *(_header_lines("partition_lag_seconds", "gauge", ages_text) if ages else []),
        *ages,
        *_header_lines("partition_lag_omitted", "gauge", "Partitions without a series of their own."),
        *omitted,
    ]


def _lag_rows(
    topics: Mapping[str, Mapping[str, int]], ages_ms: Mapping[str, Mapping[str, int]], series_max: int
) -> Iterator[tuple[str, str, int, int | None]]:
    """Yield topic, partition, unread records and age of each series; the age is None where it was not measured."""
    left = series_max
    for topic, partitions in topics.items():
        topic_ages_ms = ages_ms.get(topic, {})
        # In the order of topics and partitions, not the worst first: series would come and go with every scrape.
        for partition, records in itertools.islice(partitions.items(), left):
            yield topic, partition, records, topic_ages_ms.get(partition) if records else 0
        if len(partitions) > left:
            others = list(itertools.islice(partitions, left, None))
            records = sum(partitions[partition] for partition in others)
            known_ms = [topic_ages_ms[partition] for partition in others if partition in topic_ages_ms]
            yield topic, OTHER_PARTITIONS, records, max(known_ms, default=None) if records else 0
        left = max(left - len(partitions), 0)


def _duration_lines(pipeline_labels: Mapping[str, str], queries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = _header_lines("batch_duration_seconds", "summary", "How long batches took.") if queries else []
    for query, values in queries.items():
        labels = {**pipeline_labels, "query": query}
        lines.append(_sample("batch_duration_seconds_sum", labels, (values.get("batch_ms_total") or 0) / 1000))
        lines.append(_sample("batch_duration_seconds_count", labels, values.get("batches_total") or 0))
    return lines


def _header_lines(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP klamm_pipeline_{name} {help_text}", f"# TYPE klamm_pipeline_{name} {kind}"]


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    rendered = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
    # Rounded: 0.001 * 1003 is 1.0030000000000001.
    number = repr(round(value, 6)) if isinstance(value, float) else str(value)
    return f"klamm_pipeline_{name}{{{rendered}}} {number}"


def _escape(text: str) -> str:
    # Every label value is a time series in Prometheus: an error with a whole stack trace must not become one.
    return text[:_LABEL_CHARS_MAX].replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@contextmanager
def serve_metrics(
    name: str, status: Callable[[], Mapping[str, Any]], address: str | int | None
) -> Iterator[tuple[str, int] | None]:
    """Serve /metrics while the block runs; without an address nothing listens. Port 0 takes any free port."""
    if address is None:
        yield None
        return
    host, port = parse_address(address)

    def answer(request: ScrapeRequest) -> ScrapeResponse:
        if request.path != "/metrics":
            return ScrapeResponse(404, b"only /metrics is served\n")
        return ScrapeResponse(200, render_exposition(name, status()).encode(), CONTENT_TYPE)

    try:
        listener = ScrapeListener(host, port, answer)
    except OSError as error:
        raise ConfigError(f"metrics cannot be served on {host}:{port}: {error.strerror or error}") from None
    listener.start()
    try:
        yield listener.address
    finally:
        listener.close()


def parse_address(address: str | int) -> tuple[str, int]:
    """Return host and port to listen on, out of a port or of host:port."""
    # From the right: an IPv6 address has colons of its own.
    host, _, port = str(address).rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"metrics: {address} is neither a port nor host:port")
    return (host.removeprefix("[").removesuffix("]") or LOOPBACK), int(port)
