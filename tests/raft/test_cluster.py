"""Three real drivers on real folders, joined by an in-memory transport: the driver's side of replication."""

import asyncio
from random import Random

import pytest
import pytest_asyncio

from klamm.model.clock import SystemClock
from klamm.model.errors import ErrorCode, KlammError
from klamm.raft import RaftConfig, RaftDriver

from .conftest import Notebook, kill

pytestmark = pytest.mark.asyncio

VOTERS = {i: ("127.0.0.1", 9090 + i, bytes(15) + bytes([i])) for i in (1, 2, 3)}


class Wires:
    """Carries messages between the drivers that run; others lose theirs."""

    def __init__(self):
        self.drivers = {}

    def send(self, message):
        target = self.drivers.get(message.destination)
        if target is not None and message.source in self.drivers:
            asyncio.get_running_loop().call_soon(target.receive, message)


class Quorum:
    def __init__(self, folder):
        self.folder = folder
        self.wires = Wires()
        self.notebooks = {}
        self.fatal = []

    async def start(self, node_id, **changes):
        config = RaftConfig(
            node_id,
            VOTERS,
            str(self.folder / str(node_id)),
            directory_id=bytes(15) + bytes([node_id]),
            kraft_version=1,
            election_timeout_ms=40,
            fetch_timeout_ms=120,
            request_timeout_ms=80,
            **changes,
        )
        self.notebooks[node_id] = Notebook()
        driver = RaftDriver(
            config,
            SystemClock(),
            Random(node_id),
            self.notebooks[node_id],
            self.wires,
            on_fatal=self.fatal.append,
        )
        self.wires.drivers[node_id] = driver
        await driver.start()
        return driver

    def kill(self, node_id):
        kill(self.wires.drivers.pop(node_id))

    async def leader(self, but=None):
        def find():
            return [d for i, d in self.wires.drivers.items() if i != but and d.leader[0] == i and d.is_leader]

        await until(find)
        return find()[0]

    async def all_have(self, values):
        await until(lambda: all(self.notebooks[i].values == values for i in self.wires.drivers))


async def until(condition, timeout_s=10):
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what it waits for is spread over three members
            await asyncio.sleep(0.002)


@pytest_asyncio.fixture
async def quorum(tmp_path):
    quorum = Quorum(tmp_path)
    yield quorum
    for node_id in list(quorum.wires.drivers):
        quorum.kill(node_id)
    assert quorum.fatal == []


async def test_three_members_elect_replicate_and_survive_their_leader(quorum):
    for node_id in VOTERS:
        await quorum.start(node_id)
    leader = await quorum.leader()
    await leader.append([b"a", b"b"])
    await quorum.all_have([b"a", b"b"])
    other = next(d for d in quorum.wires.drivers.values() if d is not leader)
    with pytest.raises(KlammError) as refused:
        other.append([b"x"])
    assert refused.value.code is ErrorCode.NOT_CONTROLLER

    quorum.kill(leader.config.node_id)
    successor = await quorum.leader()
    assert successor.leader[1] > leader.leader[1]
    await successor.append([b"c"])
    await quorum.start(leader.config.node_id)
    await quorum.all_have([b"a", b"b", b"c"])


async def test_without_a_majority_nothing_is_committed(quorum):
    for node_id in VOTERS:
        await quorum.start(node_id)
    leader = await quorum.leader()
    await leader.append([b"a"])
    for node_id in VOTERS:
        if node_id != leader.config.node_id:
            quorum.kill(node_id)
    with pytest.raises(KlammError) as lost:
        await leader.append([b"alone"])
    assert lost.value.code is ErrorCode.NOT_CONTROLLER
    assert leader.leader[0] is None
    assert quorum.notebooks[leader.config.node_id].values == [b"a"]


async def test_a_member_far_behind_is_sent_a_snapshot(quorum):
    for node_id in (1, 2):
        await quorum.start(node_id, segment_bytes=4096)
    leader = await quorum.leader()
    for _ in range(3):
        for _ in range(30):
            await leader.append([bytes(200)])
        await leader.write_snapshot(leader.applied_offset, leader.leader[1], [b"state"])
    assert leader.log_start_offset > 0
    await quorum.start(3, segment_bytes=4096)
    await leader.append([b"after"])
    await until(lambda: quorum.notebooks[3].values == [b"state", b"after"])
    assert quorum.wires.drivers[3].log_start_offset >= leader.log_start_offset
    quorum.kill(3)
    await quorum.start(3, segment_bytes=4096)
    await until(lambda: quorum.notebooks[3].values == [b"state", b"after"])


async def test_a_leader_that_stops_is_succeeded_before_a_timeout(quorum):
    for node_id in VOTERS:
        await quorum.start(node_id)
    leader = await quorum.leader()
    await leader.append([b"a"])
    await quorum.all_have([b"a"])
    await leader.stop()
    successor = await quorum.leader(but=leader.config.node_id)
    assert successor is not leader
    await successor.append([b"b"])
    report = successor.describe_quorum()
    assert {voter.replica.id for voter in report.voters} == {1, 2, 3}
