"""A pipeline's numbers as Prometheus' own parser reads them, and the server that hands them out."""

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from klamm.model.errors import ConfigError
from klamm.pipeline.metrics import PARTITION_SERIES_MAX, parse_address, render_exposition, serve_metrics, share_series

QUERY = {
    "rows_total": 1234567,
    "rows_per_s": 12.5,
    "batches_total": 7,
    "batch_ms_total": 3500,
    "batch_ms": 480,
    "batch_done_ms": 1767225600123,
    "lag_records": 4,
    "lag_ms": 2500,
    "watermark": "2026-01-01T00:00:05.000Z",
    "watermark_ms": 1767225605000,
    "state_rows": 3,
    "state_bytes": 4096,
    "failures": 1,
    "restarts": 2,
    "bad_records": {"dead_letter": 3, "drop": 5},
    "error": "more\nwords",
    "error_gist": 'away "for\\now"',
    "error_ms": 1767225600000,
}
STATUS = {
    "state": "running",
    "started_ms": 1767225500000,
    "queries": {"balances": QUERY, "new": {"lag_ms": None, "error": None, "failures": 0, "bad_records": {}}},
}


def read(text):
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = {
        (sample.name, *sorted(value for label, value in sample.labels.items() if label != "pipeline")): sample.value
        for family in families.values()
        for sample in family.samples
    }
    return families, samples


def test_everything_is_told():
    families, samples = read(render_exposition("bank", STATUS))
    kinds = {name.removeprefix("klamm_pipeline_"): family.type for name, family in families.items()}
    assert {name for name, kind in kinds.items() if kind == "counter"} == {"rows", "batches", "restarts", "bad_records"}
    assert kinds["batch_duration_seconds"] == "summary"
    assert "unknown" not in kinds.values()
    assert all(family.documentation.endswith(".") for family in families.values())
    numbers = {
        "rows_total": 1234567,
        "rows_per_second": 12.5,
        "batches_total": 7,
        "batch_duration_seconds_sum": 3.5,
        "batch_duration_seconds_count": 7,
        "last_batch_duration_seconds": 0.48,
        "last_batch_timestamp_seconds": 1767225600.123,
        "lag_records": 4,
        "lag_seconds": 2.5,
        "watermark_timestamp_seconds": 1767225605,
        "state_rows": 3,
        "state_bytes": 4096,
        "failures_in_a_row": 1,
        "restarts_total": 2,
        "last_error_timestamp_seconds": 1767225600,
    }
    assert {name: samples[f"klamm_pipeline_{name}", "balances"] for name in numbers} == numbers
    assert samples["klamm_pipeline_bad_records_total", "balances", "dead_letter"] == 3
    assert samples["klamm_pipeline_bad_records_total", "balances", "drop"] == 5
    assert samples["klamm_pipeline_last_error_info", 'away "for\\now"', "balances"] == 1
    assert samples["klamm_pipeline_running",] == 1
    assert samples["klamm_pipeline_start_timestamp_seconds",] == 1767225500
    assert all(sample.labels["pipeline"] == "bank" for family in families.values() for sample in family.samples)


def test_what_nobody_knows_is_left_out():
    _, samples = read(render_exposition("bank", STATUS))
    assert {key for key in samples if "new" in key} == {
        ("klamm_pipeline_failures_in_a_row", "new"),
        ("klamm_pipeline_batch_duration_seconds_sum", "new"),
        ("klamm_pipeline_batch_duration_seconds_count", "new"),
    }
    _, samples = read(render_exposition("bank", {}))
    assert samples == {("klamm_pipeline_running",): 0}


def partition_lags(queries):
    families, samples = read(render_exposition("bank", {"queries": queries}))
    lags = {
        tuple(sample.labels[label] for label in ("query", "topic", "partition")): sample.value
        for sample in families["klamm_pipeline_partition_lag_records"].samples
    }
    omitted = {key[1]: value for key, value in samples.items() if key[0] == "klamm_pipeline_partition_lag_omitted"}
    return lags, omitted


def test_the_lag_of_partitions():
    lags, omitted = partition_lags(
        {"q": {"partition_lag_records": {"orders": {"0": 0, "1": 7}, "users": {"0": 2}}}, "qq": {"lag_records": 0}}
    )
    assert lags == {("q", "orders", "0"): 0, ("q", "orders", "1"): 7, ("q", "users", "0"): 2}
    assert omitted == {"q": 0}


def test_partitions_beyond_the_limit_are_summed():
    large = {str(part): 1 for part in range(1500)}
    queries = {
        "q1": {"partition_lag_records": {"orders": large, "users": {"0": 5, "1": 6}}},
        "q2": {"partition_lag_records": {"orders": {"0": 3}}},
    }
    lags, omitted = partition_lags(queries)
    # The small query is served whole, the large one has what is left.
    assert lags["q2", "orders", "0"] == 3
    assert (lags["q1", "orders", "998"], lags["q1", "orders", "other"], lags["q1", "users", "other"]) == (1, 501, 11)
    assert omitted == {"q1": 503, "q2": 0}
    assert len(lags) == PARTITION_SERIES_MAX + 2
    assert sum(lags.values()) == 1500 + 11 + 3


def lag_seconds(queries):
    families, _ = read(render_exposition("bank", {"queries": queries}))
    return {
        (sample.labels["topic"], sample.labels["partition"]): sample.value
        for sample in families["klamm_pipeline_partition_lag_seconds"].samples
    }


def test_the_lag_of_partitions_in_seconds():
    """Those behind of which no age was measured have none; those that are read have 0."""
    query = {
        "partition_lag_records": {"orders": {"0": 0, "1": 7, "2": 1}, "users": {"0": 2}},
        "partition_lag_ms": {"orders": {"1": 1500}, "users": {"0": 3}},
    }
    assert lag_seconds({"q": query}) == {("orders", "0"): 0, ("orders", "1"): 1.5, ("users", "0"): 0.003}
    assert "partition_lag_seconds" not in render_exposition(
        "b", {"queries": {"q": {"partition_lag_records": {"t": {"0": 1}}}}}
    )


def test_of_partitions_beyond_the_limit_the_largest_age_is_served():
    large = {str(part): 1 for part in range(PARTITION_SERIES_MAX + 100)}
    ages = {"5": 1000, str(PARTITION_SERIES_MAX + 1): 2000, str(PARTITION_SERIES_MAX + 2): 3000}
    queries = {
        "q": {"partition_lag_records": {"orders": large, "users": {"0": 0}}, "partition_lag_ms": {"orders": ages}}
    }
    assert lag_seconds(queries) == {("orders", "5"): 1, ("orders", "other"): 3, ("users", "other"): 0}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"a": 9, "b": 1, "c": 8}, {"b": 1, "c": 4, "a": 5}),
        ({"a": 4, "b": 6}, {"a": 4, "b": 6}),
        ({f"q{number}": 1 for number in range(20)}, None),
    ],
)
def test_series_are_shared_by_queries(counts, expected):
    shares = share_series(counts, 10)
    assert sum(shares.values()) == 10
    assert expected in (None, shares)


def test_scrapes_are_answered_while_it_runs():
    state = {"state": "running"}
    with serve_metrics("bank", lambda: state, "0") as (host, port):
        assert host == "127.0.0.1"
        with urllib.request.urlopen(f"http://{host}:{port}/metrics?x=1", timeout=60) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert read(answer.read().decode())[1]["klamm_pipeline_running",] == 1
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{host}:{port}/", timeout=60).close()
        foreign = urllib.request.Request(f"http://{host}:{port}/metrics", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(foreign, timeout=60).close()
        with socket.create_connection((host, port)) as rude:
            rude.sendall(b"nonsense\r\n\r\n")
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
            assert answer.status == 200
        taken = pytest.raises(ConfigError, match=rf"metrics cannot be served on 127.0.0.1:{port}: ")
        with taken as refusal, serve_metrics("other", dict, port):
            pass
        assert "in use" in str(refusal.value)
    with pytest.raises(OSError):
        socket.create_connection((host, port), 5).close()
    with serve_metrics("bank", dict, None) as nothing:
        assert nothing is None


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("9400", ("127.0.0.1", 9400)),
        (0, ("127.0.0.1", 0)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::1]:1", ("::1", 1)),
    ],
)
def test_addresses(address, expected):
    assert parse_address(address) == expected


@pytest.mark.parametrize("address", ["port", "host:", "99999", ""])
def test_no_addresses(address):
    with pytest.raises(ConfigError, match="neither a port nor host:port"):
        parse_address(address)
