"""Pipelines by what is in the cluster: alive by their lease, one row for each, and no more memory than is set."""

import pytest

from klamm.console.core import known_pipelines
from klamm.console.core.known_pipelines import KnownPipelines
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.pipeline_record import PipelineLease, PipelineRecord
from klamm.pipeline.sql.core.published_status import STATUS_TOPIC, PublishedStatus

RECORDS_TOPIC = "__klamm_pipelines"
NOW_MS = 1_000_000


def published(state="running", run="run-1", pipeline="id-1", **more):
    status = {"state": state, "queries": {"totals": {"state": state, "rows_per_s": 7}}, "graph": [], **more}
    return PublishedStatus(pipeline, run, "host-7", "/state/bank", True, status).encode()


def lease(run="run-1", age_ms=1000):
    return PipelineLease(run, "host-7", 4711, "/state/bank", NOW_MS - age_ms)


@pytest.fixture
def known():
    return KnownPipelines()


def row_of(known, name="bank"):
    return known.list_pipelines(NOW_MS)[name].row


def test_a_run_with_a_fresh_lease_is_alive_and_takes_requests(known):
    known.take(STATUS_TOPIC, b"bank", published(), 0)
    known.leases = {"id-1": lease()}
    row = row_of(known)
    assert (row.state, row.rows_per_s, row.place, row.is_here) == ("running", 7, "host-7:/state/bank", False)
    assert row.is_alive
    assert row.takes_requests
    assert row.updated_ms == NOW_MS - 1000


@pytest.mark.parametrize("newest", [None, lease(age_ms=60_000)])
def test_a_run_whose_lease_is_old_is_dead_whatever_its_status_says(known, newest):
    known.take(STATUS_TOPIC, b"bank", published(), NOW_MS)
    known.leases = {"id-1": newest}
    assert row_of(known).state == "gone"
    assert not row_of(known).is_alive


def test_a_run_that_has_ended_shows_its_last_state(known):
    known.take(STATUS_TOPIC, b"bank", published("stopped"), 0)
    assert row_of(known).state == "stopped"
    assert known.leased_ids() == set()


def test_a_newer_run_without_a_status_takes_no_requests(known):
    known.take(STATUS_TOPIC, b"bank", published(), 0)
    known.leases = {"id-1": lease("run-2")}
    row = row_of(known)
    assert (row.state, row.takes_requests, row.queries) == ("running", False, ())


def test_without_the_right_to_read_leases_a_status_of_the_last_minute_is_that_of_a_live_run(known):
    known.take(STATUS_TOPIC, b"bank", published(), NOW_MS - 30_000)
    assert row_of(known).is_alive
    known.take(STATUS_TOPIC, b"bank", published(), NOW_MS - 100_000)
    assert not row_of(known).is_alive


def test_a_pipeline_that_was_renamed_is_shown_once(known):
    known.take(STATUS_TOPIC, b"old", published("stopped"), 0)
    record = PipelineRecord(QueryIdentity("id-1", "bank", {}, {}), "host-7", "/state/bank")
    known.take(RECORDS_TOPIC, b"bank", record.encode(), 0)
    assert list(known.list_pipelines(NOW_MS)) == ["bank"]
    assert known.ids() == {"id-1"}


def test_damaged_records_and_tombstones_are_no_pipelines(known):
    known.take(STATUS_TOPIC, b"damaged", b"{", 0)
    known.take(RECORDS_TOPIC, None, b"{", 0)
    known.take(STATUS_TOPIC, b"bank", published(), 0)
    known.take(STATUS_TOPIC, b"bank", None, 0)
    known.take(STATUS_TOPIC, b"huge", published(run="x" * (1 << 20)), 0)
    assert known.list_pipelines(NOW_MS) == {}
    assert known.status("damaged") is None
    assert known.status("bank") is None


def test_the_statuses_that_were_not_written_for_the_longest_time_are_dropped(known, monkeypatch):
    size = len(published())
    monkeypatch.setattr(known_pipelines, "BYTES_MAX", 2 * size)
    for name, pipeline in (("a", "1"), ("b", "2"), ("a", "1"), ("c", "3")):
        known.take(STATUS_TOPIC, name.encode(), published(pipeline=f"id-{pipeline}"), 0)
    assert list(known.list_pipelines(NOW_MS)) == ["a", "c"]
    monkeypatch.setattr(known_pipelines, "PIPELINES_MAX", 1)
    known.take(STATUS_TOPIC, b"d", published(pipeline="id-4"), 0)
    assert list(known.list_pipelines(NOW_MS)) == ["d"]
