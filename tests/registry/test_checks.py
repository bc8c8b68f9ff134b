"""Large schemas are parsed and compared off the event loop, once."""

import threading

import pytest

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
