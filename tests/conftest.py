"""One node for all tests of a worker that need nothing special of it; each uses topics of its own."""

import pytest

from harness import KlammProcess, Wire


@pytest.fixture(scope="session")
def klamm(tmp_path_factory):
    with KlammProcess(tmp_path_factory.mktemp("klamm")) as process:
        yield process
        process.stop()


@pytest.fixture
def wire(klamm):
    with Wire(klamm.port) as connection:
        yield connection
