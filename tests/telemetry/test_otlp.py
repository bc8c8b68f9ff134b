"""Metrics as OTLP: every kind of family, read back by OpenTelemetry's own messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

from klamm.telemetry import otlp
from klamm.telemetry.exposition import Family, format_labels, parse_labels
from klamm.telemetry.histogram import BOUNDS, Histogram
from klamm.telemetry.otlp import encode_exports, read_rejected

START_NS, NOW_NS = 1_000, 2_000


def encode(*families):
    """Metrics by name, of requests that are one."""
    ((body, points),) = encode_exports(families, {"service.name": "klamm"}, start_ns=START_NS, now_ns=NOW_NS)
    request = ExportMetricsServiceRequest.FromString(body)
    (resource,) = request.resource_metrics
    assert attributes(resource.resource) == {"service.name": "klamm"}
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "klamm"
    return {metric.name: metric for metric in scope.metrics}, points


def attributes(entry):
    return {pair.key: pair.value.string_value for pair in entry.attributes}


def times(*seconds):
    histogram = Histogram()
    for value in seconds:
        histogram.observe(value)
    return histogram.read()


def test_a_counter_is_a_cumulative_sum():
    family = Family("requests", "counter", "Requests.", [("", 7), ('{request="Produce"}', 5)], rate=True)
    metrics, points = encode(family)
    metric = metrics["requests"]
    assert (metric.description, points) == ("Requests.", 2)
    assert metric.sum.is_monotonic
    assert metric.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    total, produce = metric.sum.data_points
    assert (attributes(total), total.as_int) == ({}, 7)
    assert (attributes(produce), produce.as_int) == ({"request": "Produce"}, 5)
    assert (total.start_time_unix_nano, total.time_unix_nano) == (START_NS, NOW_NS)


def test_a_gauge_keeps_whole_numbers_and_fractions():
    rows = ['{topic="t",partition="0"} 12\n', '{topic="t",partition="1"} -1\n', '{topic="t",partition="2"} 0.5\n']
    metrics, points = encode(Family("size", "gauge", "Bytes.", rows=rows), Family("up", "gauge", "Up.", [("", 1.5)]))
    assert points == 4
    first, second, third = metrics["size"].gauge.data_points
    assert attributes(second) == {"topic": "t", "partition": "1"}
    assert (first.WhichOneof("value"), first.as_int, second.as_int) == ("as_int", 12, -1)
    assert (third.WhichOneof("value"), third.as_double) == ("as_double", 0.5)
    assert metrics["up"].gauge.data_points[0].as_double == 1.5


def test_buckets_of_a_histogram_do_not_include_the_smaller_ones():
    family = Family("seconds", "histogram", "Times.")
    family.add_histogram([("request", "Produce")], times(0.001, 0.001, 0.5, 100.0))
    family.add_histogram([("request", "Fetch")], times(0.002))
    metrics, points = encode(family)
    produce, fetch = metrics["seconds"].histogram.data_points
    assert points == 2
    assert attributes(produce) == {"request": "Produce"}
    assert attributes(fetch) == {"request": "Fetch"}
    assert tuple(produce.explicit_bounds) == BOUNDS
    assert len(produce.bucket_counts) == len(BOUNDS) + 1
    assert sum(produce.bucket_counts) == produce.count == 4
    assert produce.bucket_counts[-1] == 1, "a hundred seconds are beyond the last bound"
    assert max(produce.bucket_counts) == 2
    assert produce.sum == pytest.approx(100.502)
    assert fetch.count == 1


def test_a_histogram_without_labels():
    family = Family("seconds", "histogram", "Times.")
    family.add_histogram([], times(0.001))
    (point,) = encode(family)[0]["seconds"].histogram.data_points
    assert (attributes(point), point.count) == ({}, 1)


def test_a_summary_has_its_quantiles():
    family = Family("totaltimems", "summary", "Times.")
    family.add_summary([("request", "Produce")], times(0.001), times(0.001, 0.002), 1000)
    (point,) = encode(family)[0]["totaltimems"].summary.data_points
    assert attributes(point) == {"request": "Produce"}
    assert [value.quantile for value in point.quantile_values] == [0.5, 0.75, 0.95, 0.98, 0.99, 0.999]
    assert (point.count, point.sum) == (2, pytest.approx(3.0))


def test_families_without_samples_are_left_out():
    assert list(encode_exports([Family("none", "gauge", "")], {}, start_ns=0, now_ns=0)) == []


def test_many_points_go_in_several_requests(monkeypatch):
    monkeypatch.setattr(otlp, "POINTS_PER_REQUEST", 10)
    families = [
        Family("large", "gauge", "", rows=[f'{{partition="{index}"}} {index}\n' for index in range(25)]),
        Family("small", "counter", "", [("", 1)]),
    ]
    exports = list(encode_exports(families, {}, start_ns=0, now_ns=0))
    assert [points for _, points in exports] == [10, 10, 6]
    values = []
    for body, _ in exports:
        for metric in ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics[0].metrics:
            values += [point.as_int for point in metric.gauge.data_points]
    assert values == list(range(25))


def test_rejected_points_are_read():
    assert read_rejected(b"") == (0, "")
    response = ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = 3
    response.partial_success.error_message = "too old"
    assert read_rejected(response.SerializeToString()) == (3, "too old")
    with pytest.raises(ValueError, match="not an OTLP response"):
        read_rejected(b"<html>")


@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]*", fullmatch=True), st.text()))
def test_labels_are_read_as_they_were_written(labels):
    assert dict(parse_labels(format_labels(labels.items()))) == labels
