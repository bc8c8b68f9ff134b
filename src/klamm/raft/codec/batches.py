"""Entries of the log, and the header and footer of a snapshot, as Kafka record batches."""

from collections.abc import Iterator
from typing import NamedTuple

from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.control_records import (
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeVoter,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersEndpoint,
    VotersRecord,
    VotersVoter,
)
from klamm.raft.core.messages import Entry, LeaderChange
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet
from klamm.raft.core.voter_history import VoterChange, VoterConfiguration
from klamm.records.batch import BatchView, build_batch, iter_batches
from klamm.records.control import ControlType, build_control_batch, build_control_batches, control_records

LEADER_CHANGE_VERSION = 0
"""Version 1, with directory ids, is defined but neither written nor read by Kafka 4.3."""


class CommittedBatch(NamedTuple):
    """A batch read from the log; `values` is empty for a control batch."""

    base_offset: int
    end_offset: int
    epoch: int
    append_time_ms: int
    control: bool
    values: list[bytes]


def encode_entry(entry: Entry, now_ms: int) -> bytes | bytearray:
    """Encode an entry; a replicated one is encoded already. `now_ms` is the timestamp of control records."""
    payload = entry.payload
    if isinstance(payload, bytes):
        return payload  # written as received: all replicas hold the same bytes
    if isinstance(payload, LeaderChange):
        return build_control_batch(
            ControlType.LEADER_CHANGE,
            encode(_leader_change(payload), LEADER_CHANGE_VERSION),
            timestamp=now_ms,
            base_offset=entry.base_offset,
            leader_epoch=entry.epoch,
        )
    if isinstance(payload, VoterChange):
        return build_control_batches(
            _voter_change_records(payload), timestamp=now_ms, base_offset=entry.base_offset, leader_epoch=entry.epoch
        )
    return data_batch(payload, entry.append_time_ms, entry.base_offset, entry.epoch)


def data_batch(values: tuple[bytes, ...] | list[bytes], now_ms: int, base_offset: int, epoch: int) -> bytearray:
    """Encode record values without keys as one batch."""
    rows = [(now_ms, None, value, ()) for value in values]
    return build_batch(rows, base_offset=base_offset, leader_epoch=epoch)


def _leader_change(change: LeaderChange) -> LeaderChangeMessage:
    return LeaderChangeMessage(
        version=LEADER_CHANGE_VERSION,
        leader_id=change.leader_id,
        voters=[LeaderChangeVoter(voter_id=key.id, voter_directory_id=key.directory_id) for key in change.voters],
        granting_voters=[
            LeaderChangeVoter(voter_id=key.id, voter_directory_id=key.directory_id) for key in change.granting_voters
        ],
    )


def snapshot_header(timestamp: int, now_ms: int, epoch: int, configuration: VoterConfiguration) -> bytearray:
    """The first batch of a snapshot; with dynamic voters it also carries kraft.version and voters."""
    header = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=timestamp)
    records = [(int(ControlType.SNAPSHOT_HEADER), encode(header, 0))]
    if configuration.dynamic:
        records += _voter_change_records(VoterChange(configuration.voters, configuration.kraft_version))
    return build_control_batches(records, timestamp=now_ms, leader_epoch=epoch)


def _voter_change_records(change: VoterChange) -> list[tuple[int, bytes]]:
    records = []
    # kraft.version before voters, as Kafka writes them.
    if change.kraft_version is not None:
        level = KRaftVersionRecord(version=0, k_raft_version=change.kraft_version)
        records.append((int(ControlType.KRAFT_VERSION), encode(level, 0)))
    if change.voters is not None:
        records.append((int(ControlType.KRAFT_VOTERS), encode(voters_record(change.voters), 0)))
    return records


def read_voter_change(view: BatchView) -> VoterChange | None:
    """The change of voters or kraft.version in a control batch, or None."""
    voters, kraft_version = None, None
    for record in control_records(view):
        if record.type == ControlType.KRAFT_VERSION:
            level, _ = decode(KRaftVersionRecord, 0, record.value)
            kraft_version = level.k_raft_version
        elif record.type == ControlType.KRAFT_VOTERS:
            listed, _ = decode(VotersRecord, 0, record.value)
            voters = _voter_set(listed)
    return None if voters is None and kraft_version is None else VoterChange(voters, kraft_version)


def _voter_set(record: VotersRecord) -> VoterSet:
    voters = []
    for voter in record.voters:
        listener, host, port = "CONTROLLER", "", 0
        if voter.endpoints:
            # One controller listener is enough to reach a voter; Kafka lists all of them.
            endpoint = voter.endpoints[0]
            listener, host, port = endpoint.name, endpoint.host, endpoint.port
        feature = voter.k_raft_version_feature
        versions = (feature.min_supported_version, feature.max_supported_version)
        voters.append(Voter(ReplicaKey(voter.voter_id, voter.voter_directory_id), host, port, listener, versions))
    return VoterSet(voters)


def snapshot_footer(now_ms: int, base_offset: int, epoch: int) -> bytearray:
    """The last batch of a snapshot."""
    return build_control_batch(
        ControlType.SNAPSHOT_FOOTER,
        encode(SnapshotFooterRecord(version=0), 0),
        timestamp=now_ms,
        base_offset=base_offset,
        leader_epoch=epoch,
    )


def voters_record(voters: VoterSet) -> VotersRecord:
    """The record of a voter set in the log and in snapshots."""
    return VotersRecord(
        version=0,
        voters=[
            VotersVoter(
                voter_id=voter.id,
                voter_directory_id=voter.key.directory_id,
                endpoints=[VotersEndpoint(name=voter.listener, host=voter.host, port=voter.port)],
                k_raft_version_feature=KRaftVersionFeature(
                    min_supported_version=voter.kraft_versions[0], max_supported_version=voter.kraft_versions[1]
                ),
            )
            for voter in voters
        ],
    )


def read_batches(data: bytes) -> Iterator[CommittedBatch]:
    """Decode complete batches, and verify their checksums."""
    for view in iter_batches(data, allow_incomplete_tail=True):
        view.check_crc()
        values = [] if view.is_control else [record.value or b"" for record in view.decode()]
        yield CommittedBatch(
            view.base_offset, view.next_offset, view.leader_epoch, view.max_timestamp, view.is_control, values
        )


def read_entries(data: bytes) -> tuple[Entry, ...]:
    """The batches in `data` as entries of a follower: their bytes, with offsets and epoch from the header."""
    return tuple(_entry(view) for view in iter_batches(data, allow_incomplete_tail=True))


def _entry(view: BatchView) -> Entry:
    view.check_crc()
    voter_change = read_voter_change(view) if view.is_control else None
    return Entry(view.base_offset, view.last_offset, view.leader_epoch, bytes(view.raw), voter_change=voter_change)
