"""A request reaches the quorum's leader, also when the first node it is sent to no longer leads."""

import asyncio
from types import SimpleNamespace

import pytest

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet
from klamm.raft.core.voter_history import VoterConfiguration
from klamm.server.controller.raft_transport import RaftTransport

from .test_controller_channel import PATIENCE_MS, FakeController

pytestmark = pytest.mark.asyncio

REMOVE_RAFT_VOTER = 81
REQUEST = RemoveRaftVoterRequest(cluster_id="c", voter_id=3, voter_directory_id=bytes(16))


class FakeVoter(FakeController):
    """Says which versions it speaks, then answers as told."""

    def __init__(self, answer):
        versions = ApiVersionsResponse(api_keys=[ApiVersion(api_key=REMOVE_RAFT_VOTER, min_version=0, max_version=0)])
        super().__init__(lambda request: versions if isinstance(request, ApiVersionsRequest) else answer(request))

    @property
    def removals(self):
        return [request for request in self.requested if isinstance(request, RemoveRaftVoterRequest)]


def transport_to(*ports):
    """A broker's way to voters 1, 2 and so on, the first of which it takes for the leader."""
    voters = VoterSet(Voter(ReplicaKey(i), "127.0.0.1", port) for i, port in enumerate(ports, 1))
    made = RaftTransport(asyncio.get_running_loop(), 9, "c", listener="CONTROLLER", endpoint=None)
    voter_history = SimpleNamespace(latest=VoterConfiguration(voters))
    made.driver = SimpleNamespace(
        leader=(1, 1),
        config=SimpleNamespace(node_id=9),
        core=SimpleNamespace(voters=voters, voter_history=voter_history),
    )
    return made


async def test_a_former_leaders_refusal_is_no_answer():
    def refuse(_request):
        transport.driver.leader = (2, 2)
        return RemoveRaftVoterResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message="no more")

    async with (
        FakeVoter(refuse) as one,
        FakeVoter(lambda _: RemoveRaftVoterResponse(error_message=None)) as two,
    ):
        transport = transport_to(one.port, two.port)
        try:
            answer = await transport.ask_leader(REQUEST, timeout_ms=PATIENCE_MS)
        finally:
            await transport.close()
        assert answer.error_code == ErrorCode.NONE
        assert (len(one.removals), len(two.removals)) == (1, 1)


async def test_a_voter_that_is_gone_when_the_next_leader_is_asked_was_removed():
    """A leader that removes itself may be gone before its answer has arrived."""

    def vanish(_request):
        transport.driver.leader = (2, 2)

    gone = RemoveRaftVoterResponse(error_code=ErrorCode.VOTER_NOT_FOUND, error_message="not a voter")
    async with FakeVoter(vanish) as one, FakeVoter(lambda _: gone) as two:
        transport = transport_to(one.port, two.port)
        try:
            answer = await transport.ask_leader(REQUEST, timeout_ms=PATIENCE_MS)
        finally:
            await transport.close()
        assert (answer.error_code, len(two.removals)) == (ErrorCode.NONE, 1)


async def test_other_refusals_are_answers():
    refusal = RemoveRaftVoterResponse(error_code=ErrorCode.VOTER_NOT_FOUND, error_message="not a voter")
    async with FakeVoter(lambda _: refusal) as one:
        transport = transport_to(one.port)
        try:
            answer = await transport.ask_leader(REQUEST, timeout_ms=PATIENCE_MS)
        finally:
            await transport.close()
        assert answer.error_code == ErrorCode.VOTER_NOT_FOUND


async def test_without_a_leader_the_deadline_ends_it():
    transport = transport_to()
    transport.driver.leader = (None, 1)
    with pytest.raises(KlammError) as caught:
        await transport.ask_leader(REQUEST, timeout_ms=50)
    await transport.close()
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
