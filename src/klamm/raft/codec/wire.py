"""The messages of the quorum as Kafka requests and responses.

A request names its cluster and the voter it is meant for. A response names the leader and its address, so that a
member with a single bootstrap address finds the quorum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from klamm.model.errors import ErrorCode
from klamm.model.ids import METADATA_TOPIC_ID, ZERO_UUID
from klamm.model.topic_names import CLUSTER_METADATA_TOPIC
from klamm.protocol.messages import begin_quorum_epoch as begin
from klamm.protocol.messages import end_quorum_epoch as end
from klamm.protocol.messages import fetch, fetch_snapshot, vote
from klamm.raft.codec.batches import read_entries
from klamm.raft.core.messages import (
    OffsetAndEpoch,
    RaftBeginQuorumEpochRequest,
    RaftBeginQuorumEpochResponse,
    RaftEndQuorumEpochRequest,
    RaftEndQuorumEpochResponse,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftFetchSnapshotRequest,
    RaftFetchSnapshotResponse,
    RaftRequest,
    RaftResponse,
    RaftVoteRequest,
    RaftVoteResponse,
)
from klamm.raft.core.quorum import ReplicaKey

Endpoints: TypeAlias = Mapping[int, tuple[str, int]]
"""Node id -> host and port of its controller listener."""

NO_NODE_ID = -1
# As in Kafka, the largest batch of the metadata log.
FETCH_BYTES = 8 * 1024 * 1024


class TopLevelError(Exception):
    """Raised for a request or response that is only a top-level error code and does not reach the core."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A decoded request with its sender, and the cluster and voter it is meant for."""

    source: int
    """The node id of the sender."""
    body: RaftRequest
    cluster_id: str | None
    voter: ReplicaKey | None
    """The voter it is meant for; None when the request does not name one."""
    endpoint: tuple[str, int] | None = None
    """The address of the leader that sent it; None when the request does not carry one."""


# Requests, outbound


def encode_request(
    body: RaftRequest, cluster_id: str, voter: ReplicaKey, listener: str, endpoint: tuple[str, int] | None
) -> Any:
    """Encode a request for `voter`; `listener` and `endpoint` are those of the sender."""
    match body:
        case RaftVoteRequest():
            partition = vote.PartitionData(
                partition_index=0,
                replica_epoch=body.epoch,
                replica_id=body.candidate.id,
                replica_directory_id=body.candidate.directory_id,
                voter_directory_id=voter.directory_id,
                last_offset_epoch=body.last.epoch,
                last_offset=body.last.offset,
                pre_vote=body.pre_vote,
            )
            topic = vote.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
            return vote.VoteRequest(cluster_id=cluster_id, voter_id=voter.id, topics=[topic])
        case RaftBeginQuorumEpochRequest():
            started = begin.PartitionData(
                partition_index=0,
                voter_directory_id=voter.directory_id,
                leader_id=body.leader_id,
                leader_epoch=body.epoch,
            )
            return begin.BeginQuorumEpochRequest(
                cluster_id=cluster_id,
                voter_id=voter.id,
                topics=[begin.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[started])],
                leader_endpoints=[
                    begin.LeaderEndpoint(name=listener, host=host, port=port) for host, port in _optional(endpoint)
                ],
            )
        case RaftEndQuorumEpochRequest():
            ended = end.PartitionData(
                partition_index=0,
                leader_id=body.leader_id,
                leader_epoch=body.epoch,
                # Version 0 has successors, version 1 candidates; the codec writes what its version has.
                preferred_successors=list(body.preferred_successors),
                preferred_candidates=[
                    end.ReplicaInfo(candidate_id=successor, candidate_directory_id=ZERO_UUID)
                    for successor in body.preferred_successors
                ],
            )
            return end.EndQuorumEpochRequest(
                cluster_id=cluster_id,
                topics=[end.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[ended])],
                leader_endpoints=[
                    end.LeaderEndpoint(name=listener, host=host, port=port) for host, port in _optional(endpoint)
                ],
            )
        case RaftFetchRequest():
            wanted = fetch.FetchPartition(
                partition=0,
                current_leader_epoch=body.epoch,
                fetch_offset=body.fetch_offset,
                last_fetched_epoch=body.last_fetched_epoch,
                log_start_offset=-1,
                partition_max_bytes=FETCH_BYTES,
                replica_directory_id=body.replica.directory_id,
                high_watermark=body.high_watermark,
            )
            return fetch.FetchRequest(
                cluster_id=cluster_id,
                # Versions before 15 have the id here, later ones in `replica_state` (KIP-903).
                replica_id=body.replica.id,
                replica_state=fetch.ReplicaState(replica_id=body.replica.id),
                max_wait_ms=body.max_wait_ms,
                max_bytes=FETCH_BYTES,
                topics=[
                    fetch.FetchTopic(topic=CLUSTER_METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[wanted])
                ],
            )
        case RaftFetchSnapshotRequest():
            piece = fetch_snapshot.PartitionSnapshot(
                partition=0,
                current_leader_epoch=body.epoch,
                snapshot_id=fetch_snapshot.SnapshotId(end_offset=body.snapshot_id.offset, epoch=body.snapshot_id.epoch),
                position=body.position,
                replica_directory_id=body.replica.directory_id,
            )
            return fetch_snapshot.FetchSnapshotRequest(
                cluster_id=cluster_id,
                replica_id=body.replica.id,
                max_bytes=body.max_bytes,
                topics=[fetch_snapshot.TopicSnapshot(name=CLUSTER_METADATA_TOPIC, partitions=[piece])],
            )


def _optional(endpoint: tuple[str, int] | None) -> list[tuple[str, int]]:
    return [] if endpoint is None else [endpoint]


# Requests, inbound


def decode_request(request: Any) -> IncomingRequest:
    """Decode a request; TopLevelError INVALID_REQUEST when it names other partitions than the metadata log."""
    match request:
        case vote.VoteRequest():
            partition = _only_partition(request.topics)
            return IncomingRequest(
                partition.replica_id,
                RaftVoteRequest(
                    ReplicaKey(partition.replica_id, partition.replica_directory_id),
                    partition.replica_epoch,
                    OffsetAndEpoch(partition.last_offset, partition.last_offset_epoch),
                    partition.pre_vote,
                ),
                request.cluster_id,
                _voter(request.voter_id, partition.voter_directory_id),
            )
        case begin.BeginQuorumEpochRequest():
            started = _only_partition(request.topics)
            return IncomingRequest(
                started.leader_id,
                RaftBeginQuorumEpochRequest(started.leader_id, started.leader_epoch),
                request.cluster_id,
                _voter(request.voter_id, started.voter_directory_id),
                _first_endpoint(request.leader_endpoints),
            )
        case end.EndQuorumEpochRequest():
            ended = _only_partition(request.topics)
            # Version 0 has ids only, version 1 candidates with directories.
            candidates = [candidate.candidate_id for candidate in ended.preferred_candidates]
            successors = candidates or ended.preferred_successors
            return IncomingRequest(
                ended.leader_id,
                RaftEndQuorumEpochRequest(ended.leader_id, ended.leader_epoch, tuple(successors)),
                request.cluster_id,
                None,
                _first_endpoint(request.leader_endpoints),
            )
        case fetch.FetchRequest():
            wanted = _only_fetch_partition(request)
            replica_id = request.replica_state.replica_id if request.replica_state is not None else request.replica_id
            return IncomingRequest(
                replica_id,
                RaftFetchRequest(
                    ReplicaKey(replica_id, wanted.replica_directory_id),
                    wanted.current_leader_epoch,
                    wanted.fetch_offset,
                    wanted.last_fetched_epoch,
                    wanted.high_watermark,
                    request.max_wait_ms,
                ),
                request.cluster_id,
                None,
            )
        case fetch_snapshot.FetchSnapshotRequest():
            piece = _only_partition(request.topics, "name", "partition")
            return IncomingRequest(
                request.replica_id,
                RaftFetchSnapshotRequest(
                    ReplicaKey(request.replica_id, piece.replica_directory_id),
                    piece.current_leader_epoch,
                    OffsetAndEpoch(piece.snapshot_id.end_offset, piece.snapshot_id.epoch),
                    piece.position,
                    request.max_bytes,
                ),
                request.cluster_id,
                None,
            )
    raise TypeError(f"{type(request).__name__} is not a quorum request")


def _first_endpoint(endpoints: Any) -> tuple[str, int] | None:
    return next(((endpoint.host, endpoint.port) for endpoint in endpoints), None)


def _only_partition(topics: Any, name: str = "topic_name", index: str = "partition_index") -> Any:
    if (
        len(topics) != 1
        or getattr(topics[0], name) != CLUSTER_METADATA_TOPIC
        or len(topics[0].partitions) != 1
        or getattr(topics[0].partitions[0], index) != 0
    ):
        raise TopLevelError(ErrorCode.INVALID_REQUEST)
    return topics[0].partitions[0]


def _only_fetch_partition(request: fetch.FetchRequest) -> fetch.FetchPartition:
    topics = request.topics
    # Topic ids since Fetch 13, names before.
    known = len(topics) == 1 and (topics[0].topic_id == METADATA_TOPIC_ID or topics[0].topic == CLUSTER_METADATA_TOPIC)
    if not known or len(topics[0].partitions) != 1 or topics[0].partitions[0].partition != 0:
        raise TopLevelError(ErrorCode.INVALID_REQUEST)
    return topics[0].partitions[0]


def _voter(node_id: int, directory_id: bytes) -> ReplicaKey | None:
    return None if node_id == NO_NODE_ID else ReplicaKey(node_id, directory_id)


# Responses, outbound


def encode_response(body: RaftResponse, endpoints: Endpoints) -> Any:
    """Encode a response, with the address of the leader it names."""
    leader_id = NO_NODE_ID if body.leader_id is None else body.leader_id
    node = [(leader_id, *endpoints[leader_id])] if leader_id in endpoints else []
    name = CLUSTER_METADATA_TOPIC
    match body:
        case RaftVoteResponse():
            voted = vote.PartitionDataResponse(
                partition_index=0,
                error_code=body.error,
                leader_id=leader_id,
                leader_epoch=body.epoch,
                vote_granted=body.granted,
            )
            return vote.VoteResponse(
                topics=[vote.TopicDataResponse(topic_name=name, partitions=[voted])],
                node_endpoints=[vote.NodeEndpoint(node_id=i, host=h, port=p) for i, h, p in node],
            )
        case RaftBeginQuorumEpochResponse():
            started = begin.PartitionDataResponse(
                partition_index=0, error_code=body.error, leader_id=leader_id, leader_epoch=body.epoch
            )
            return begin.BeginQuorumEpochResponse(
                topics=[begin.TopicDataResponse(topic_name=name, partitions=[started])],
                node_endpoints=[begin.NodeEndpoint(node_id=i, host=h, port=p) for i, h, p in node],
            )
        case RaftEndQuorumEpochResponse():
            ended = end.PartitionDataResponse(
                partition_index=0, error_code=body.error, leader_id=leader_id, leader_epoch=body.epoch
            )
            return end.EndQuorumEpochResponse(
                topics=[end.TopicDataResponse(topic_name=name, partitions=[ended])],
                node_endpoints=[end.NodeEndpoint(node_id=i, host=h, port=p) for i, h, p in node],
            )
        case RaftFetchResponse():
            return fetch.FetchResponse(
                responses=[
                    fetch.FetchableTopicResponse(
                        topic=name, topic_id=METADATA_TOPIC_ID, partitions=[_fetch_partition(body, leader_id)]
                    )
                ],
                node_endpoints=[fetch.NodeEndpoint(node_id=i, host=h, port=p) for i, h, p in node],
            )
        case RaftFetchSnapshotResponse():
            return fetch_snapshot.FetchSnapshotResponse(
                topics=[
                    fetch_snapshot.TopicSnapshotResponse(name=name, partitions=[_snapshot_partition(body, leader_id)])
                ],
                node_endpoints=[fetch_snapshot.NodeEndpoint(node_id=i, host=h, port=p) for i, h, p in node],
            )


def _fetch_partition(body: RaftFetchResponse, leader_id: int) -> fetch.PartitionData:
    diverging, snapshot = body.diverging, body.snapshot_id
    return fetch.PartitionData(
        partition_index=0,
        error_code=body.error,
        high_watermark=body.high_watermark,
        # The metadata log has no transactions of producers.
        last_stable_offset=body.high_watermark,
        log_start_offset=body.log_start_offset,
        diverging_epoch=diverging and fetch.EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.offset),
        current_leader=fetch.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=body.epoch),
        snapshot_id=snapshot and fetch.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        aborted_transactions=None,
        records=b"".join(entry.payload for entry in body.entries if isinstance(entry.payload, bytes)),
    )


def _snapshot_partition(body: RaftFetchSnapshotResponse, leader_id: int) -> fetch_snapshot.PartitionSnapshotResponse:
    snapshot = body.snapshot_id or OffsetAndEpoch(0, 0)
    return fetch_snapshot.PartitionSnapshotResponse(
        index=0,
        error_code=body.error,
        snapshot_id=fetch_snapshot.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        current_leader=fetch_snapshot.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=body.epoch),
        size=body.size,
        position=body.position,
        unaligned_records=body.chunk,
    )


def encode_error_response(request: Any, code: ErrorCode) -> Any:
    """Encode the response to a request that is rejected before it reaches the core."""
    match request:
        case vote.VoteRequest():
            return vote.VoteResponse(error_code=code)
        case begin.BeginQuorumEpochRequest():
            return begin.BeginQuorumEpochResponse(error_code=code)
        case end.EndQuorumEpochRequest():
            return end.EndQuorumEpochResponse(error_code=code)
        case fetch.FetchRequest():
            return fetch.FetchResponse(error_code=code)
        case fetch_snapshot.FetchSnapshotRequest():
            return fetch_snapshot.FetchSnapshotResponse(error_code=code)
    raise TypeError(f"{type(request).__name__} is not a quorum request")


def reject_wrong_voter(body: RaftRequest, epoch: int, leader_id: int | None) -> RaftResponse:
    """The response to a request meant for another replica of this node, for example before its disk was wiped."""
    if isinstance(body, RaftVoteRequest):
        return RaftVoteResponse(epoch, leader_id, error=ErrorCode.INVALID_VOTER_KEY)
    return RaftBeginQuorumEpochResponse(epoch, leader_id, ErrorCode.INVALID_VOTER_KEY)


# Responses, inbound


def decode_response(response: Any) -> tuple[RaftResponse, dict[int, tuple[str, int]]]:
    """Decode a response, with the addresses in it; TopLevelError when it is only an error code."""
    if response.error_code:
        raise TopLevelError(ErrorCode(response.error_code))
    endpoints = {endpoint.node_id: (endpoint.host, endpoint.port) for endpoint in response.node_endpoints}
    if isinstance(response, fetch.FetchResponse):
        topics: Any = response.responses
    else:
        topics = response.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise TopLevelError(ErrorCode.UNKNOWN_SERVER_ERROR)
    partition = topics[0].partitions[0]
    error = ErrorCode(partition.error_code)
    match response:
        case vote.VoteResponse():
            voted = RaftVoteResponse(
                partition.leader_epoch, _leader_id(partition.leader_id), partition.vote_granted, error
            )
            return voted, endpoints
        case begin.BeginQuorumEpochResponse():
            return RaftBeginQuorumEpochResponse(
                partition.leader_epoch, _leader_id(partition.leader_id), error
            ), endpoints
        case end.EndQuorumEpochResponse():
            return RaftEndQuorumEpochResponse(partition.leader_epoch, _leader_id(partition.leader_id), error), endpoints
        case fetch.FetchResponse():
            return _decode_fetch_partition(partition, error), endpoints
        case fetch_snapshot.FetchSnapshotResponse():
            return _decode_snapshot_partition(partition, error), endpoints
    raise TypeError(f"{type(response).__name__} is not a quorum response")


def _decode_fetch_partition(partition: fetch.PartitionData, error: ErrorCode) -> RaftFetchResponse:
    leader, diverging, snapshot = partition.current_leader, partition.diverging_epoch, partition.snapshot_id
    return RaftFetchResponse(
        -1 if leader is None else leader.leader_epoch,
        None if leader is None else _leader_id(leader.leader_id),
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log_start_offset,
        diverging=_position(diverging),
        snapshot_id=_position(snapshot),
        entries=read_entries(bytes(partition.records or b"")),
        error=error,
    )


def _position(end: fetch.EpochEndOffset | fetch.SnapshotId | None) -> OffsetAndEpoch | None:
    # Kafka encodes an absent value as epoch -1.
    return None if end is None or end.epoch < 0 else OffsetAndEpoch(end.end_offset, end.epoch)


def _decode_snapshot_partition(
    partition: fetch_snapshot.PartitionSnapshotResponse, error: ErrorCode
) -> RaftFetchSnapshotResponse:
    leader = partition.current_leader
    return RaftFetchSnapshotResponse(
        -1 if leader is None else leader.leader_epoch,
        None if leader is None else _leader_id(leader.leader_id),
        OffsetAndEpoch(partition.snapshot_id.end_offset, partition.snapshot_id.epoch),
        partition.position,
        size=partition.size,
        chunk=bytes(partition.unaligned_records or b""),
        error=error,
    )


def _leader_id(leader_id: int) -> int | None:
    return None if leader_id < 0 else leader_id
