"""Every word of the quorum survives its wire form, in every version that can carry it."""

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol.apis import BY_NAME
from klamm.protocol.codec import decode, encode
from klamm.raft.codec.batches import data_batch, encode_entry, read_entries
from klamm.raft.codec.wire import (
    TopLevelError,
    decode_request,
    decode_response,
    encode_error_response,
    encode_request,
    encode_response,
)
from klamm.raft.core import messages as m
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet
from klamm.raft.core.voter_history import VoterChange

HERE, THERE = ReplicaKey(1, bytes(range(16))), ReplicaKey(2, bytes(range(16, 32)))
AT = m.OffsetAndEpoch(42, 3)


def travels(message, version):
    copied, _ = decode(type(message), version, encode(message, version))
    return copied


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (m.RaftVoteRequest(HERE, 7, AT, pre_vote=True), 2),
        (m.RaftBeginQuorumEpochRequest(1, 7), 1),
        (m.RaftEndQuorumEpochRequest(1, 7, (2, 3)), 0),
        (m.RaftEndQuorumEpochRequest(1, 7, (2, 3)), 1),
        (m.RaftFetchRequest(HERE, 7, 42, 3, 40, 500), 18),
        (m.RaftFetchSnapshotRequest(HERE, 7, AT, 1024, 4096), 1),
    ],
)
def test_requests(body, version):
    sent = encode_request(body, "cluster", THERE, "CONTROLLER", ("localhost", 9093))
    decoded = decode_request(travels(sent, version))
    assert decoded.body == body
    assert (decoded.source, decoded.cluster_id) == (1, "cluster")
    assert decoded.voter in (None, THERE)


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (m.RaftVoteResponse(7, None, granted=True), 2),
        (m.RaftVoteResponse(7, 2, error=ErrorCode.FENCED_LEADER_EPOCH), 2),
        (m.RaftBeginQuorumEpochResponse(7, 2), 1),
        (m.RaftEndQuorumEpochResponse(7, 2, ErrorCode.INVALID_REQUEST), 1),
        (m.RaftFetchResponse(7, 2, 40, 5), 17),
        (m.RaftFetchResponse(7, 2, 40, 5, diverging=AT), 17),
        (m.RaftFetchResponse(7, 2, 40, 5, snapshot_id=AT), 17),
        (m.RaftFetchSnapshotResponse(7, 2, AT, 10, size=99, chunk=b"abc"), 1),
    ],
)
def test_responses(body, version):
    sent = encode_response(body, {2: ("host2", 9093), 3: ("host3", 9093)})
    decoded, endpoints = decode_response(travels(sent, version))
    assert decoded == body
    assert endpoints == ({2: ("host2", 9093)} if body.leader_id == 2 else {})


def test_batches_travel_as_they_are_and_say_what_they_change():
    voters = VoterSet([Voter(HERE, "host1", 9093), Voter(THERE, "host2", 9094)])
    change = VoterChange(voters, 1)
    batches = bytes(data_batch((b"a", b"b"), 5, 42, 3)) + bytes(encode_entry(m.Entry(44, 45, 3, change), 5))
    entries = read_entries(batches)
    sent = encode_response(m.RaftFetchResponse(7, 2, 46, entries=entries), {})
    decoded, _ = decode_response(travels(sent, 17))
    assert decoded.entries == entries
    assert [entry.voter_change for entry in decoded.entries] == [None, change]
    assert [(entry.base_offset, entry.last_offset) for entry in decoded.entries] == [(42, 43), (44, 45)]


@pytest.mark.parametrize("name", ["Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "Fetch", "FetchSnapshot"])
def test_requests_about_anything_else_are_refused(name):
    with pytest.raises(TopLevelError):
        decode_request(BY_NAME[name].request())
    with pytest.raises(TopLevelError) as caught:
        decode_response(encode_error_response(BY_NAME[name].request(), ErrorCode.INCONSISTENT_CLUSTER_ID))
    assert caught.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
