"""Encodes metrics as OTLP, the protocol of OpenTelemetry's collectors; pure. Needs the extra `otlp`.

A counter becomes a monotonic sum, a gauge a gauge, a histogram a histogram with explicit bounds and a summary a
summary; all are cumulative since the start of the node. Names are those of the Prometheus text without `_total`, which
Prometheus adds again when it receives OTLP.

The message classes of `opentelemetry-proto` are used without OpenTelemetry's SDK: the SDK keeps instruments and
aggregates by itself, and the families are aggregated already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric

from klamm.telemetry.exposition import Family, parse_labels

CONTENT_TYPE: Final = "application/x-protobuf"
SCOPE: Final = "klamm"
POINTS_PER_REQUEST: Final = 5_000
"""About half a megabyte; a collector takes four by default, and serializing it holds the interpreter a millisecond."""
POINTS_MAX: Final = 200_000
"""Of one export; the rest is left out and counted."""

_Attributes = dict[str, list[Any]]


def encode_exports(
    families: Iterable[Family], resource: Mapping[str, str], *, start_ns: int, now_ns: int
) -> Iterator[tuple[bytes, int]]:
    """Yield requests with the number of points in each.

    A family with more points than a request may have is in several of them.
    """
    attributes: _Attributes = {}
    request, points = _begin_request(resource), 0
    for family in families:
        for metric, count in _encode_family(family, attributes, start_ns, now_ns):
            if points and points + count > POINTS_PER_REQUEST:
                yield request.SerializeToString(), points
                request, points = _begin_request(resource), 0
            request.resource_metrics[0].scope_metrics[0].metrics.append(metric)
            points += count
    if points:
        yield request.SerializeToString(), points


def read_rejected(response: bytes) -> tuple[int, str]:
    """Return how many points a collector has rejected, and why; ValueError for bytes that are no response."""
    try:
        partial = ExportMetricsServiceResponse.FromString(response).partial_success
    except Exception as error:  # noqa: BLE001 - DecodeError of protobuf, which is not imported for its name
        raise ValueError(f"not an OTLP response: {error}") from None
    return partial.rejected_data_points, partial.error_message


def _begin_request(resource: Mapping[str, str]) -> Any:
    request = ExportMetricsServiceRequest()
    entry = request.resource_metrics.add()
    entry.resource.attributes.extend(_key_value(name, value) for name, value in resource.items())
    entry.scope_metrics.add().scope.name = SCOPE
    return request


def _key_value(name: str, value: str) -> Any:
    return KeyValue(key=name, value=AnyValue(string_value=value))


def _encode_family(family: Family, attributes: _Attributes, start_ns: int, now_ns: int) -> Iterator[tuple[Any, int]]:
    """Yield the metric of a family with its number of points, in pieces that fit a request."""
    if family.kind == "histogram":
        yield from _encode_histograms(family, attributes, start_ns, now_ns)
        return
    if family.kind == "summary":
        yield from _encode_summaries(family, attributes, start_ns, now_ns)
        return
    metric, points, count = _begin_numbers(family)
    for labels, value in _samples(family):
        point = points.add(start_time_unix_nano=start_ns, time_unix_nano=now_ns)
        point.attributes.extend(_attributes_of(labels, attributes))
        if isinstance(value, int):
            # int: protobuf takes no bool for a number, and sums of conditions may be one.
            point.as_int = int(value)
        else:
            point.as_double = value
        count += 1
        if count == POINTS_PER_REQUEST:
            yield metric, count
            metric, points, count = _begin_numbers(family)
    if count:
        yield metric, count


def _begin_numbers(family: Family) -> tuple[Any, Any, int]:
    metric = Metric(name=family.name, description=family.help)
    if family.kind == "gauge":
        return metric, metric.gauge.data_points, 0
    metric.sum.is_monotonic = True
    metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    return metric, metric.sum.data_points, 0


def _samples(family: Family) -> Iterator[tuple[str, int | float]]:
    yield from family.samples
    for row in family.rows:
        labels, _, text = row.rstrip("\n").rpartition(" ")
        yield labels, int(text) if text.removeprefix("-").isdecimal() else float(text)


def _attributes_of(labels: str, attributes: _Attributes) -> list[Any]:
    """Return the attributes of a label text; the families of a partition share theirs."""
    known = attributes.get(labels)
    if known is None:
        known = attributes[labels] = [_key_value(name, value) for name, value in parse_labels(labels)]
    return known


def _encode_histograms(
    family: Family, attributes: _Attributes, start_ns: int, now_ns: int
) -> Iterator[tuple[Any, int]]:
    metric = Metric(name=family.name, description=family.help)
    metric.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    series: dict[str, Any] = {}
    below: dict[str, int] = {}
    for suffix, text, value in family.suffixed:
        rest, bound = _split_label(text, "le") if suffix == "_bucket" else (text, "")
        point = series.get(rest)
        if point is None:
            point = series[rest] = metric.histogram.data_points.add(
                start_time_unix_nano=start_ns, time_unix_nano=now_ns
            )
            point.attributes.extend(_attributes_of(rest, attributes))
        if suffix == "_count":
            point.count = int(value)
        elif suffix == "_sum":
            point.sum = value
        else:
            # Prometheus' buckets include the smaller ones; those of OTLP do not, and the last has no bound.
            point.bucket_counts.append(int(value) - below.get(rest, 0))
            below[rest] = int(value)
            if bound != "+Inf":
                point.explicit_bounds.append(float(bound))
    if series:
        yield metric, len(series)


def _encode_summaries(family: Family, attributes: _Attributes, start_ns: int, now_ns: int) -> Iterator[tuple[Any, int]]:
    metric = Metric(name=family.name, description=family.help)
    series: dict[str, Any] = {}
    for suffix, text, value in family.suffixed:
        rest, share = (text, "") if suffix else _split_label(text, "quantile")
        point = series.get(rest)
        if point is None:
            point = series[rest] = metric.summary.data_points.add(start_time_unix_nano=start_ns, time_unix_nano=now_ns)
            point.attributes.extend(_attributes_of(rest, attributes))
        if suffix == "_count":
            point.count = int(value)
        elif suffix == "_sum":
            point.sum = value
        else:
            point.quantile_values.add(quantile=float(share), value=value)
    if series:
        yield metric, len(series)


def _split_label(text: str, name: str) -> tuple[str, str]:
    """Return label text without its last label, which has this name, and the value of that one."""
    rest, _, value = text.rpartition(f'{name}="')
    rest = rest.rstrip(",")
    return ("" if rest == "{" else rest + "}"), value.removesuffix('"}')
