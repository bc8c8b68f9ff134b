"""Every test of this folder runs with each of the three clients, against the same node."""

import pytest

from harness.clients import ALL


@pytest.fixture(params=ALL, ids=lambda kind: kind.name, scope="session")
def client(request, klamm):
    made = request.param(klamm.bootstrap)
    yield made
    made.close()


def pytest_collection_modifyitems(items):
    for item in items:
        if "/clients/" in str(item.path):
            item.add_marker(pytest.mark.clients)
