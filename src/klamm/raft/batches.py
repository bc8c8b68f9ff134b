"""Between entries and bytes: how a proposal, a new epoch and a snapshot's frame look as Kafka batches."""

from collections.abc import Iterator
from typing import NamedTuple

from klamm.protocol.codec import encode
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
from klamm.raft.messages import Entry, LeaderChange
from klamm.raft.quorum import VoterSet
from klamm.records.batch import BatchView, build_batch, iter_batches
from klamm.records.control import ControlType, build_control_batch, build_control_batches

LEADER_CHANGE_VERSION = 0
"""Version 1, with directory ids, is defined but neither written nor read by Kafka 4.3."""


class CommittedBatch(NamedTuple):
    """A batch as read back: the record values, or none for a control batch."""

    base_offset: int
    end_offset: int
    epoch: int
    append_time_ms: int
    control: bool
    values: list[bytes]


def encode_entry(entry: Entry, now_ms: int) -> bytes | bytearray:
    """The batch an entry is on disk; a replicated one is already a batch. `now_ms` stamps a new epoch's record."""
    payload = entry.payload
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, LeaderChange):
        return build_control_batch(
            ControlType.LEADER_CHANGE,
            encode(_leader_change(payload), LEADER_CHANGE_VERSION),
            timestamp=now_ms,
            base_offset=entry.base_offset,
            leader_epoch=entry.epoch,
        )
    return data_batch(payload, entry.append_time_ms, entry.base_offset, entry.epoch)


def data_batch(values: tuple[bytes, ...] | list[bytes], now_ms: int, base_offset: int, epoch: int) -> bytearray:
    """One batch of record values without keys."""
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


def snapshot_header(timestamp: int, now_ms: int, epoch: int, kraft_version: int, voters: VoterSet) -> bytearray:
    """The opening batch of a snapshot; with dynamic voters it also carries the quorum."""
    header = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=timestamp)
    records = [(int(ControlType.SNAPSHOT_HEADER), encode(header, 0))]
    if kraft_version >= 1:
        level = KRaftVersionRecord(version=0, k_raft_version=kraft_version)
        records += [
            (int(ControlType.KRAFT_VERSION), encode(level, 0)),
            (int(ControlType.KRAFT_VOTERS), encode(voters_record(voters), 0)),
        ]
    return build_control_batches(records, timestamp=now_ms, leader_epoch=epoch)


def snapshot_footer(now_ms: int, base_offset: int, epoch: int) -> bytearray:
    """The closing batch of a snapshot."""
    return build_control_batch(
        ControlType.SNAPSHOT_FOOTER,
        encode(SnapshotFooterRecord(version=0), 0),
        timestamp=now_ms,
        base_offset=base_offset,
        leader_epoch=epoch,
    )


def voters_record(voters: VoterSet) -> VotersRecord:
    """A voter set as the log and snapshots carry it."""
    return VotersRecord(
        version=0,
        voters=[
            VotersVoter(
                voter_id=voter.id,
                voter_directory_id=voter.key.directory_id,
                endpoints=[VotersEndpoint(name=voter.listener, host=voter.host, port=voter.port)],
                k_raft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
            )
            for voter in voters
        ],
    )


def read_batches(data: bytes) -> Iterator[CommittedBatch]:
    """Decode whole batches, checksums verified."""
    for view in iter_batches(data, allow_incomplete_tail=True):
        view.check_crc()
        values = [] if view.is_control else [record.value or b"" for record in view.decode()]
        yield CommittedBatch(
            view.base_offset, view.next_offset, view.leader_epoch, view.max_timestamp, view.is_control, values
        )


def read_entries(data: bytes) -> tuple[Entry, ...]:
    """Batches as a follower receives them: bytes, with the offsets and epoch of their header."""
    return tuple(_entry(view) for view in iter_batches(data, allow_incomplete_tail=True))


def _entry(view: BatchView) -> Entry:
    view.check_crc()
    return Entry(view.base_offset, view.last_offset, view.leader_epoch, bytes(view.raw))
