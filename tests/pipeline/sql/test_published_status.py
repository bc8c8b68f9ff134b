"""The status that a run publishes to the cluster, and requests to it: what is read back, and what is refused."""

import json

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.published_status import (
    REQUEST_AGE_MAX_MS,
    STATUS_BYTES_MAX,
    PipelineRequest,
    PublishedStatus,
    without_clocks,
)


def publish(status):
    return PublishedStatus("id-1", "run-1", "host-7", "/state/bank", True, status)


def test_a_status_is_read_as_it_was_published_without_the_lags_of_partitions():
    query = {"state": "running", "rows_per_s": 3.5}
    lags = {"partition_lag_records": {"orders": {"0": 4}}, "partition_lag_ms": {}}
    status = {"state": "running", "graph": [{"name": "a"}], "error": None, "queries": {"a": {**query, **lags}}}
    read = PublishedStatus.decode(publish(status).encode())
    assert (read.pipeline, read.run, read.place, read.takes_requests) == ("id-1", "run-1", "host-7:/state/bank", True)
    assert read.status == {**status, "queries": {"a": query}}
    assert read.is_alive


@pytest.mark.parametrize(
    ("queries", "graph", "error"),
    [(10, 10, "x" * 100_000), (10, 20_000, "x"), (3_000, 3_000, "x" * 100), (100_000, 100_000, "x" * 100)],
)
def test_a_status_of_any_size_is_published_in_a_bounded_record(queries, graph, error):
    status = {
        "state": "failed",
        "error": error,
        "graph": [{"name": f"statement {number}"} for number in range(graph)],
        "queries": {f"query {number}": {"state": "failed", "error": error} for number in range(queries)},
    }
    data = publish(status).encode()
    assert len(data) <= STATUS_BYTES_MAX
    assert PublishedStatus.decode(data).status["state"] == "failed"


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"pipeline": 1, "status": {}}'])
def test_a_record_that_is_no_status_is_refused(data):
    with pytest.raises(ConfigError):
        PublishedStatus.decode(data)


def test_a_status_differs_by_more_than_its_clocks():
    status = {"state": "running", "updated_ms": 1, "queries": {"a": {"rows": 1, "restart_in_ms": 4}}}
    later = {"state": "running", "updated_ms": 9, "queries": {"a": {"rows": 1, "restart_in_ms": 2}}}
    assert without_clocks(status) == without_clocks(later)
    assert without_clocks(status) != without_clocks({**later, "queries": {"a": {"rows": 2}}})


def test_a_request_is_read_as_it_was_written():
    request = PipelineRequest("r-1", "run-1", "pause", "totals", 1000)
    assert PipelineRequest.decode(request.encode()) == request
    assert not request.is_old(1000 + REQUEST_AGE_MAX_MS)
    assert request.is_old(1001 + REQUEST_AGE_MAX_MS)


@pytest.mark.parametrize(
    "change",
    [
        {"action": "delete"},
        {"action": []},
        {"query": 3},
        {"time_ms": "x"},
        {"time_ms": True},
        {"id": "x" * 65},
        {"run": None},
    ],
)
def test_a_record_that_is_no_request_is_passed_over(change):
    document = {"id": "r-1", "run": "run-1", "action": "stop", "query": None, "time_ms": 1}
    assert PipelineRequest.decode(json.dumps(document).encode()) is not None
    assert PipelineRequest.decode(json.dumps({**document, **change}).encode()) is None
    assert PipelineRequest.decode(b"{") is None
