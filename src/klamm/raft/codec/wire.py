"""Between raft's values and Kafka's requests: the wire clothes of what quorum members say to each other.

Pure. A request names its cluster and the voter it is meant for; an answer names the leader and where it is reached, so
that a member which knows nobody but one address finds the quorum.
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
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    OffsetAndEpoch,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from klamm.raft.core.quorum import ReplicaKey

Endpoints: TypeAlias = Mapping[int, tuple[str, int]]
"""Node id -> host and port of its controller listener."""

NOBODY = -1
UNKNOWN_HIGH_WATERMARK = 2**63 - 1
FETCH_BYTES = 8 * 1024 * 1024


class Refused(Exception):
    """The whole answer is an error code: nothing of it concerns the quorum's state."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as it arrived: who asks, whom it meant, in which cluster."""

    source: int
    body: Request
    cluster_id: str | None
    voter: ReplicaKey | None
    """The voter it is meant for, when it says so."""
    endpoint: tuple[str, int] | None = None
    """Where the leader that speaks is reached, when it says so."""


# Requests, outbound


def encode_request(
    body: Request, cluster_id: str, voter: ReplicaKey, listener: str, endpoint: tuple[str, int] | None
) -> Any:
    """The request for `voter`; `listener` and `endpoint` are our own."""
    match body:
        case VoteRequest():
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
        case BeginQuorumEpochRequest():
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
                    begin.LeaderEndpoint(name=listener, host=host, port=port) for host, port in _listed(endpoint)
                ],
            )
        case EndQuorumEpochRequest():
            ended = end.PartitionData(
                partition_index=0,
                leader_id=body.leader_id,
                leader_epoch=body.epoch,
                preferred_successors=list(body.preferred_successors),
                preferred_candidates=[
                    end.ReplicaInfo(candidate_id=each, candidate_directory_id=ZERO_UUID)
                    for each in body.preferred_successors
                ],
            )
            return end.EndQuorumEpochRequest(
                cluster_id=cluster_id,
                topics=[end.TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[ended])],
                leader_endpoints=[
                    end.LeaderEndpoint(name=listener, host=host, port=port) for host, port in _listed(endpoint)
                ],
            )
        case FetchRequest():
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
                replica_id=body.replica.id,
                replica_state=fetch.ReplicaState(replica_id=body.replica.id),
                max_wait_ms=body.max_wait_ms,
                max_bytes=FETCH_BYTES,
                topics=[
                    fetch.FetchTopic(topic=CLUSTER_METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[wanted])
                ],
            )
        case FetchSnapshotRequest():
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


def _listed(endpoint: tuple[str, int] | None) -> list[tuple[str, int]]:
    return [] if endpoint is None else [endpoint]


# Requests, inbound


def decode_request(request: Any) -> Incoming:
    """What another member asks; Refused INVALID_REQUEST when it is not about the metadata log alone."""
    match request:
        case vote.VoteRequest():
            asked = _only_partition(request.topics)
            return Incoming(
                asked.replica_id,
                VoteRequest(
                    ReplicaKey(asked.replica_id, asked.replica_directory_id),
                    asked.replica_epoch,
                    OffsetAndEpoch(asked.last_offset, asked.last_offset_epoch),
                    asked.pre_vote,
                ),
                request.cluster_id,
                _voter(request.voter_id, asked.voter_directory_id),
            )
        case begin.BeginQuorumEpochRequest():
            started = _only_partition(request.topics)
            return Incoming(
                started.leader_id,
                BeginQuorumEpochRequest(started.leader_id, started.leader_epoch),
                request.cluster_id,
                _voter(request.voter_id, started.voter_directory_id),
                next(((each.host, each.port) for each in request.leader_endpoints), None),
            )
        case end.EndQuorumEpochRequest():
            ended = _only_partition(request.topics)
            successors = [each.candidate_id for each in ended.preferred_candidates] or ended.preferred_successors
            return Incoming(
                ended.leader_id,
                EndQuorumEpochRequest(ended.leader_id, ended.leader_epoch, tuple(successors)),
                request.cluster_id,
                None,
                next(((each.host, each.port) for each in request.leader_endpoints), None),
            )
        case fetch.FetchRequest():
            wanted = _only_fetched(request)
            replica_id = request.replica_state.replica_id if request.replica_state is not None else request.replica_id
            return Incoming(
                replica_id,
                FetchRequest(
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
            return Incoming(
                request.replica_id,
                FetchSnapshotRequest(
                    ReplicaKey(request.replica_id, piece.replica_directory_id),
                    piece.current_leader_epoch,
                    OffsetAndEpoch(piece.snapshot_id.end_offset, piece.snapshot_id.epoch),
                    piece.position,
                    request.max_bytes,
                ),
                request.cluster_id,
                None,
            )
    raise TypeError(f"{type(request).__name__} is no request of the quorum")


def _only_partition(topics: Any, name: str = "topic_name", index: str = "partition_index") -> Any:
    if (
        len(topics) != 1
        or getattr(topics[0], name) != CLUSTER_METADATA_TOPIC
        or len(topics[0].partitions) != 1
        or getattr(topics[0].partitions[0], index) != 0
    ):
        raise Refused(ErrorCode.INVALID_REQUEST)
    return topics[0].partitions[0]


def _only_fetched(request: fetch.FetchRequest) -> fetch.FetchPartition:
    topics = request.topics
    known = len(topics) == 1 and (topics[0].topic_id == METADATA_TOPIC_ID or topics[0].topic == CLUSTER_METADATA_TOPIC)
    if not known or len(topics[0].partitions) != 1 or topics[0].partitions[0].partition != 0:
        raise Refused(ErrorCode.INVALID_REQUEST)
    return topics[0].partitions[0]


def _voter(node_id: int, directory_id: bytes) -> ReplicaKey | None:
    return None if node_id == NOBODY else ReplicaKey(node_id, directory_id)


# Responses, outbound


def encode_response(body: Response, endpoints: Endpoints) -> Any:
    """The answer; the leader it names comes with its address."""
    leader_id = NOBODY if body.leader_id is None else body.leader_id
    node = [(leader_id, *endpoints[leader_id])] if leader_id in endpoints else []
    name = CLUSTER_METADATA_TOPIC
    match body:
        case VoteResponse():
            answered = vote.PartitionDataResponse(
                partition_index=0,
                error_code=body.error,
                leader_id=leader_id,
                leader_epoch=body.epoch,
                vote_granted=body.granted,
            )
            return vote.VoteResponse(
                topics=[vote.TopicDataResponse(topic_name=name, partitions=[answered])],
                node_endpoints=[vote.NodeEndpoint(node_id=i, host=h, port=p) for i, h, p in node],
            )
        case BeginQuorumEpochResponse():
            started = begin.PartitionDataResponse(
                partition_index=0, error_code=body.error, leader_id=leader_id, leader_epoch=body.epoch
            )
            return begin.BeginQuorumEpochResponse(
                topics=[begin.TopicDataResponse(topic_name=name, partitions=[started])],
                node_endpoints=[begin.NodeEndpoint(node_id=i, host=h, port=p) for i, h, p in node],
            )
        case EndQuorumEpochResponse():
            ended = end.PartitionDataResponse(
                partition_index=0, error_code=body.error, leader_id=leader_id, leader_epoch=body.epoch
            )
            return end.EndQuorumEpochResponse(
                topics=[end.TopicDataResponse(topic_name=name, partitions=[ended])],
                node_endpoints=[end.NodeEndpoint(node_id=i, host=h, port=p) for i, h, p in node],
            )
        case FetchResponse():
            return fetch.FetchResponse(
                responses=[
                    fetch.FetchableTopicResponse(
                        topic=name, topic_id=METADATA_TOPIC_ID, partitions=[_fetched(body, leader_id)]
                    )
                ],
                node_endpoints=[fetch.NodeEndpoint(node_id=i, host=h, port=p) for i, h, p in node],
            )
        case FetchSnapshotResponse():
            return fetch_snapshot.FetchSnapshotResponse(
                topics=[fetch_snapshot.TopicSnapshotResponse(name=name, partitions=[_piece(body, leader_id)])],
                node_endpoints=[fetch_snapshot.NodeEndpoint(node_id=i, host=h, port=p) for i, h, p in node],
            )


def _fetched(body: FetchResponse, leader_id: int) -> fetch.PartitionData:
    diverging, snapshot = body.diverging, body.snapshot_id
    return fetch.PartitionData(
        partition_index=0,
        error_code=body.error,
        high_watermark=body.high_watermark,
        last_stable_offset=body.high_watermark,
        log_start_offset=body.log_start_offset,
        diverging_epoch=diverging and fetch.EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.offset),
        current_leader=fetch.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=body.epoch),
        snapshot_id=snapshot and fetch.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        aborted_transactions=None,
        records=b"".join(entry.payload for entry in body.entries if isinstance(entry.payload, bytes)),
    )


def _piece(body: FetchSnapshotResponse, leader_id: int) -> fetch_snapshot.PartitionSnapshotResponse:
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


def refuse_request(request: Any, code: ErrorCode) -> Any:
    """The answer to a request that never reached the quorum's state."""
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
    raise TypeError(f"{type(request).__name__} is no request of the quorum")


def wrong_voter(body: Request, epoch: int, leader_id: int | None) -> Response:
    """The answer to a request that was meant for another replica of this node: its disk was wiped, say."""
    if isinstance(body, VoteRequest):
        return VoteResponse(epoch, leader_id, error=ErrorCode.INVALID_VOTER_KEY)
    return BeginQuorumEpochResponse(epoch, leader_id, ErrorCode.INVALID_VOTER_KEY)


# Responses, inbound


def decode_response(response: Any) -> tuple[Response, dict[int, tuple[str, int]]]:
    """The answer and the addresses in it; Refused when it is an error as a whole."""
    if response.error_code:
        raise Refused(ErrorCode(response.error_code))
    endpoints = {each.node_id: (each.host, each.port) for each in response.node_endpoints}
    if isinstance(response, fetch.FetchResponse):
        topics: Any = response.responses
    else:
        topics = response.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR)
    found = topics[0].partitions[0]
    error = ErrorCode(found.error_code)
    match response:
        case vote.VoteResponse():
            voted = VoteResponse(found.leader_epoch, _known(found.leader_id), found.vote_granted, error)
            return voted, endpoints
        case begin.BeginQuorumEpochResponse():
            return BeginQuorumEpochResponse(found.leader_epoch, _known(found.leader_id), error), endpoints
        case end.EndQuorumEpochResponse():
            return EndQuorumEpochResponse(found.leader_epoch, _known(found.leader_id), error), endpoints
        case fetch.FetchResponse():
            return _read_fetched(found, error), endpoints
        case fetch_snapshot.FetchSnapshotResponse():
            return _read_piece(found, error), endpoints
    raise TypeError(f"{type(response).__name__} is no answer of the quorum")


def _read_fetched(found: fetch.PartitionData, error: ErrorCode) -> FetchResponse:
    leader, diverging, snapshot = found.current_leader, found.diverging_epoch, found.snapshot_id
    return FetchResponse(
        -1 if leader is None else leader.leader_epoch,
        None if leader is None else _known(leader.leader_id),
        high_watermark=found.high_watermark,
        log_start_offset=found.log_start_offset,
        diverging=_position(diverging),
        snapshot_id=_position(snapshot),
        entries=read_entries(bytes(found.records or b"")),
        error=error,
    )


def _position(found: fetch.EpochEndOffset | fetch.SnapshotId | None) -> OffsetAndEpoch | None:
    return None if found is None or found.epoch < 0 else OffsetAndEpoch(found.end_offset, found.epoch)


def _read_piece(found: fetch_snapshot.PartitionSnapshotResponse, error: ErrorCode) -> FetchSnapshotResponse:
    leader = found.current_leader
    return FetchSnapshotResponse(
        -1 if leader is None else leader.leader_epoch,
        None if leader is None else _known(leader.leader_id),
        OffsetAndEpoch(found.snapshot_id.end_offset, found.snapshot_id.epoch),
        found.position,
        size=found.size,
        chunk=bytes(found.unaligned_records or b""),
        error=error,
    )


def _known(leader_id: int) -> int | None:
    return None if leader_id < 0 else leader_id
