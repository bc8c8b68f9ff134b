"""The session of a registry in its group: longer where brokers allow no less, unless the settings say how long."""

import asyncio

import pytest

from harness.inprocess import NodeThread
from klamm.registry.election import RegistryElection
from klamm.registry.store.election import RegistryIdentity

PATIENCE_S = 30


class Listener:
    """Takes part in an election and writes nothing."""

    def __init__(self):
        self.followed = asyncio.Queue()

    def is_leading(self):
        return False

    async def stop_writing(self):
        pass

    async def follow(self, leader, *, own):
        self.followed.put_nowait((leader is not None, own))


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with NodeThread(tmp_path_factory.mktemp("node"), "group.min.session.timeout.ms=10000") as running:
        yield running


@pytest.mark.parametrize(
    ("settings", "leads"),
    [({}, True), ({"session.timeout.ms": 12_000}, True), ({"session.timeout.ms": 6000}, False)],
    ids=["default", "long", "short"],
)
def test_a_session_of_the_settings_is_not_lengthened(node, settings, leads):
    async def elect():
        listener = Listener()
        client = {"bootstrap.servers": f"127.0.0.1:{node.port}", **settings}
        identity = RegistryIdentity("127.0.0.1", 8081)
        election = RegistryElection(client, f"group-{len(settings)}-{leads}", identity, listener)
        await election.start()
        try:
            return await asyncio.wait_for(listener.followed.get(), PATIENCE_S)
        finally:
            await election.stop()

    assert asyncio.run(elect()) == (leads, leads)
