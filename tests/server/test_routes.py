"""The table of APIs: every one that is advertised has code behind it, and every row is advertised."""

import re

import pytest

from klamm.protocol.apis import BY_NAME
from klamm.server.requests.delegations import DELEGATIONS
from klamm.server.requests.routes import QUICK_PATHS, SERVED, SERVED_BY_CONTROLLER, quick_paths, routes


@pytest.mark.parametrize(("kind", "names"), [("broker", SERVED), ("controller", SERVED_BY_CONTROLLER)])
def test_every_served_api_has_a_handler(kind, names):
    table = routes(kind)
    assert {route.api.name for route in table.values()} == set(names)
    assert all(callable(route.handle) for route in table.values())


def test_every_delegation_is_served():
    assert set(DELEGATIONS) <= {*SERVED, *SERVED_BY_CONTROLLER}


def test_the_notes_of_a_delegation_name_its_versions():
    for row in DELEGATIONS.values():
        if row.api == "Fetch":
            continue  # its versions are those of the handler for clients
        first, last = BY_NAME[row.api].versions
        stated = re.match(r"v(\d+)(?:-(\d+))?", row.notes)
        assert stated is not None, row.api
        assert (int(stated[1]), int(stated[2] or stated[1])) == (first, last), row.api


def test_fetch_on_a_controller_listener_replicates_the_metadata_log():
    key = BY_NAME["Fetch"].key
    assert routes("controller")[key].handle is DELEGATIONS["Fetch"].answer
    assert routes("broker")[key].handle is not DELEGATIONS["Fetch"].answer


def test_quick_paths_are_of_served_apis():
    assert set(quick_paths()) == {BY_NAME[name].key for name in QUICK_PATHS}
    assert set(QUICK_PATHS) <= set(SERVED)
