"""Large schemas are parsed and compared off the event loop, once."""

import threading

import pytest

from klamm.registry.store import parsing

from . import small_formats
from .small_service import AsgiClient, SmallService
from .small_store import record


class WatchedFormats:
    """Counts calls and the threads they are in."""

    SCHEMA_TYPES = small_formats.SCHEMA_TYPES
    InvalidSchemaError = small_formats.InvalidSchemaError

    reduce_spelling = staticmethod(small_formats.reduce_spelling)

    def __init__(self):
        self.calls = []

    def parse_schema(self, schema_type, text, references, *, is_new):
        self.calls.append(("parse", threading.current_thread() is threading.main_thread()))
        return small_formats.parse_schema(schema_type, text, references, is_new=is_new)

    def check_compatibility(self, new, old, level, policy):
        self.calls.append(("compare", threading.current_thread() is threading.main_thread()))
        return small_formats.check_compatibility(new, old, level, policy)


@pytest.fixture
def formats():
    return WatchedFormats()


@pytest.fixture
def http(formats):
    service = SmallService(formats)
    client = AsgiClient(service)
    yield client
    service.checks.close()
    client.close()


def large(count):
    return record("R", **{f"f{number}": True for number in range(count)})


def test_large_schemas_are_handled_in_threads(http, formats):
    assert http.register("s", large(1000)).status == 200
    assert http.register("s", large(1001)).status == 200
    assert http.post("/compatibility/subjects/s/versions", {"schema": large(1002)}).json() == {"is_compatible": True}
    assert http.post("/subjects/s", {"schema": large(1001)}).json()["version"] == 2
    assert {kind for kind, _ in formats.calls} == {"parse", "compare"}
    assert not any(in_main for _, in_main in formats.calls)


def test_small_schemas_are_handled_in_place(http, formats):
    http.register("s", large(1))
    http.register("s", large(2))
    assert all(in_main for _, in_main in formats.calls)


def test_a_comparison_is_made_once_for_a_registration(http, formats):
    http("PUT", "/config/s", {"compatibility": "BACKWARD_TRANSITIVE"})
    for count in range(1, 6):
        assert http.register("s", large(count)).status == 200
    # Each new version is compared with all before it, in advance, and the decision repeats none of it.
    assert [kind for kind, _ in formats.calls].count("compare") == 0 + 1 + 2 + 3 + 4


def test_refusals_come_from_threads_too(http):
    http.register("s", large(1000))
    broken = record("R", **{f"g{number}": False for number in range(1000)})
    assert http.register("s", broken).error_code == 40901
    assert http.register("s", "x" * 10_000).error_code == 42201
    http("PUT", "/mode", {"mode": "READONLY"})
    assert http.register("s", large(1001)).error_code == 42205


def test_a_look_up_reads_each_version_once(http, formats, monkeypatch):
    """Afterwards it is found by its hash, also when the cache has lost what the versions were parsed to."""
    monkeypatch.setattr(parsing, "_CACHED_MAX", 1)
    for count in range(1, 6):
        http.register("s", large(count))
    assert http.post("/subjects/s", {"schema": large(10)}).error_code == 40403
    formats.calls.clear()
    assert http.post("/subjects/s", {"schema": large(11)}).error_code == 40403
    assert formats.calls == [("parse", True)]
    assert http.post("/subjects/s", {"schema": large(3)}).json()["version"] == 3


def test_versions_are_compared_up_to_the_first_that_forbids(http, formats):
    http.put("/config/s", {"compatibility": "NONE"})
    for schema in (record("R", a=True), record("R", b=True), record("R", x=False), record("R", x=False, y=True)):
        assert http.register("s", schema).status == 200
    http.put("/config/s", {"compatibility": "BACKWARD_TRANSITIVE"})
    formats.calls.clear()
    for _ in range(2):
        refusal = http.register("s", record("R", x=False, z=True))
        assert refusal.error_code == 40901
        assert "{oldSchemaVersion: 2}" in refusal.json()["message"]
        assert [kind for kind, _ in formats.calls].count("compare") == 3


def test_a_version_that_cannot_be_parsed_forbids_after_newer_ones(http):
    http.put("/config/s", {"compatibility": "NONE"})
    http.register("s", record("R", a=True))
    key = b'{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}'
    http.service.state.replay(key, b'{"subject":"s","version":2,"id":50,"schema":"{"}', 1)
    assert http.register("s", record("R", x=False)).json()["version"] == 3
    http.put("/config/s", {"compatibility": "BACKWARD_TRANSITIVE"})
    assert "version 2 cannot be parsed" in http.register("s", record("R", x=False, y=True)).json()["message"]
    assert "{oldSchemaVersion: 3}" in http.register("s", record("R", z=False)).json()["message"]
