"""The small files beside the log: Kafka's names and bytes, whole or not there."""

import os
from contextlib import suppress
from dataclasses import replace

import pytest

from klamm.model.errors import CorruptBatch, StorageFailure
from klamm.model.ids import ZERO_UUID
from klamm.raft.codec.batches import data_batch
from klamm.raft.core.messages import OffsetAndEpoch
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet
from klamm.raft.core.roles import ElectionState
from klamm.raft.core.voter_history import DYNAMIC, VoterConfiguration
from klamm.raft.quorum_state import QuorumStateFile
from klamm.raft.recovery import open_storage
from klamm.raft.snapshot_folder import SnapshotFolder, parse_snapshot_name, snapshot_name
from klamm.records.batch import iter_batches
from klamm.records.control import ControlType, control_records
from klamm.storage.disk import Disk

DIRECTORY = bytes(range(16))
VOTERS = VoterSet([Voter(ReplicaKey(1, DIRECTORY), "localhost", 9093), Voter(ReplicaKey(2))])
ID = OffsetAndEpoch(42, 7)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write_snapshot(folder, values, kraft_version=0, snapshot_id=ID):
    folder.write(
        snapshot_id,
        values,
        now_ms=1000,
        last_contained_log_timestamp=900,
        configuration=VoterConfiguration(VOTERS, kraft_version),
    )


@pytest.fixture
def folder(tmp_path):
    return SnapshotFolder(str(tmp_path), Disk())


def test_quorum_state_of_static_voters(tmp_path):
    file = QuorumStateFile(str(tmp_path), Disk())
    assert file.read() == ElectionState()
    file.write(ElectionState(3, None, ReplicaKey(2)), VoterConfiguration(VOTERS))
    assert read(tmp_path / "quorum-state") == (
        '{"clusterId":"","leaderId":-1,"leaderEpoch":3,"votedId":2,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1},{"voterId":2}],"data_version":0,"checksum":2344949724}'
    )
    assert file.read() == ElectionState(3, None, ReplicaKey(2))


def test_static_voters_are_read_back_and_dynamic_ones_are_not_there(tmp_path):
    file = QuorumStateFile(str(tmp_path), Disk())
    assert file.read_static_voters() is None
    file.write(ElectionState(3, 1), VoterConfiguration(VOTERS))
    assert file.read_static_voters() == {1, 2}
    file.write(ElectionState(3, 1), VoterConfiguration(VOTERS, DYNAMIC))
    assert file.read_static_voters() is None
    (tmp_path / "quorum-state").write_text("[]")
    assert file.read_static_voters() is None


def test_quorum_state_of_dynamic_voters(tmp_path):
    file = QuorumStateFile(str(tmp_path), Disk())
    state = ElectionState(4, None, ReplicaKey(1, DIRECTORY))
    file.write(state, VoterConfiguration(VOTERS, 1))
    assert read(tmp_path / "quorum-state") == (
        '{"leaderId":-1,"leaderEpoch":4,"votedId":1,"votedDirectoryId":"AAECAwQFBgcICQoLDA0ODw",'
        '"data_version":1,"checksum":2234023062}'
    )
    assert file.read() == state
    assert os.listdir(tmp_path) == ["quorum-state"]


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"data_version":9}', "not json"])
def test_a_damaged_quorum_state_is_refused(tmp_path, content):
    (tmp_path / "quorum-state").write_text(content)
    with pytest.raises(StorageFailure, match="not a quorum state"):
        QuorumStateFile(str(tmp_path), Disk()).read()


@pytest.mark.parametrize("configuration", [VoterConfiguration(VOTERS), VoterConfiguration(VOTERS, 1)])
def test_no_bit_of_a_quorum_state_turns_over_unnoticed(tmp_path, configuration):
    """Breaks when a digit becomes another one and is taken for the vote, or the epoch, that was written."""
    file, path = QuorumStateFile(str(tmp_path), Disk()), tmp_path / "quorum-state"
    state = ElectionState(14, None, ReplicaKey(2, DIRECTORY if configuration.dynamic else ZERO_UUID))
    file.write(state, configuration)
    whole = path.read_bytes()
    for at in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << at % 8
        path.write_bytes(damaged)
        with suppress(StorageFailure):
            assert file.read() == state, bytes(damaged)


def test_a_quorum_state_of_kafka_s_is_read(tmp_path):
    """It has no checksum."""
    (tmp_path / "quorum-state").write_text(
        '{"clusterId":"","leaderId":2,"leaderEpoch":7,"votedId":-1,"appliedOffset":0,"currentVoters":[],"data_version":0}'
    )
    assert QuorumStateFile(str(tmp_path), Disk()).read() == ElectionState(7, 2, None)


def test_snapshot_names_are_kafka_s():
    assert snapshot_name(ID) == "00000000000000000042-0000000007.checkpoint"
    assert parse_snapshot_name(snapshot_name(ID)) == ID
    for other in ("00000000000000000042.snapshot", snapshot_name(ID) + ".part", "bootstrap.checkpoint", "x"):
        assert parse_snapshot_name(other) is None


def test_a_snapshot_is_framed_by_header_and_footer(folder):
    values = [b"%d" % i + bytes(1000) for i in range(200)]
    write_snapshot(folder, iter(values))
    assert folder.read(ID) == values
    batches = list(iter_batches(Disk().read_file(folder.path(ID))))
    assert [batch.is_control for batch in batches] == [True, *[False] * (len(batches) - 2), True]
    assert {batch.leader_epoch for batch in batches} == {7}
    assert [batch.base_offset for batch in batches[1:]] == [batch.next_offset for batch in batches[:-1]]
    assert [record.type for record in control_records(batches[0])] == [ControlType.SNAPSHOT_HEADER]
    assert [record.type for record in control_records(batches[-1])] == [ControlType.SNAPSHOT_FOOTER]


def test_a_snapshot_of_dynamic_voters_carries_them(folder):
    write_snapshot(folder, [], kraft_version=1)
    header = next(iter_batches(Disk().read_file(folder.path(ID))))
    types = [record.type for record in control_records(header)]
    assert types == [ControlType.SNAPSHOT_HEADER, ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS]
    assert folder.read(ID) == []


def test_every_cut_and_every_flipped_byte_of_a_snapshot_is_noticed(folder):
    write_snapshot(folder, [b"one", b"two"])
    whole = Disk().read_file(folder.path(ID))
    for size in range(len(whole)):
        Disk().write_file(folder.path(ID), whole[:size])
        with pytest.raises(CorruptBatch):
            folder.read(ID)
    for position in range(16, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        Disk().write_file(folder.path(ID), damaged)
        with suppress(CorruptBatch):  # base offsets and epochs lie outside the checksum
            assert folder.read(ID) == [b"one", b"two"]


def test_the_newest_whole_snapshot_is_found_and_halves_are_removed(folder, tmp_path):
    write_snapshot(folder, [b"old"], snapshot_id=OffsetAndEpoch(10, 1))
    write_snapshot(folder, [b"new"])
    (tmp_path / "00000000000000000099-0000000009.checkpoint.part").write_bytes(b"half")
    folder.remove_partial()
    assert folder.ids() == [OffsetAndEpoch(10, 1), ID]
    assert folder.latest_valid() == (ID, [b"new"])
    (tmp_path / snapshot_name(ID)).write_bytes(b"")
    assert folder.latest_valid() == (OffsetAndEpoch(10, 1), [b"old"])


def test_a_snapshot_travels_in_chunks(folder, tmp_path):
    write_snapshot(folder, [bytes(500)])
    os.makedirs(tmp_path / "other")
    other = SnapshotFolder(str(tmp_path / "other"), Disk())
    position, size = 0, 1
    while position < size:
        size, chunk = folder.read_chunk(ID, position, 100)
        other.write_chunk(ID, position, chunk, complete=position + len(chunk) == size)
        position += len(chunk)
    assert other.read(ID) == [bytes(500)]


def test_a_log_that_contradicts_its_snapshot_gives_way_to_it(config):
    """A crash between the arrival of a leader's snapshot and the emptying of the log."""
    disk = Disk()
    first = open_storage(config, disk, 0)
    first.log.append(data_batch([b"never committed"] * 50, 0, 0, 3))
    first.log.close()
    write_snapshot(first.snapshots, [b"truth"])
    opened = open_storage(config, disk, 0)
    assert (opened.log.start_offset, opened.log.end_offset) == (42, 42)
    assert opened.snapshot == (ID, [b"truth"])
    assert opened.positions.end == ID
    opened.log.close()
    again = open_storage(config, disk, 0)
    assert again.positions.end == ID
    again.log.close()


class SyncedDisk(Disk):
    """Remembers what was synced: how long a file was then, and which names a folder had."""

    def __init__(self):
        self.sizes = {}
        self.names = {}

    def fsync(self, fd):
        os.fsync(fd)
        self.sizes[os.readlink(f"/proc/self/fd/{fd}")] = os.fstat(fd).st_size

    fdatasync = fsync

    def sync_dir(self, path):
        super().sync_dir(path)
        self.names[path] = set(os.listdir(path))


@pytest.mark.parametrize("synced", [0, 2, 8])
@pytest.mark.parametrize("end", [2, 3, 4, 6])
def test_what_was_cut_off_stays_cut_off_when_the_power_fails(config, end, synced):
    """Otherwise the batches of one leader could follow on those of another, at offsets where both have batches.

    Unsynced batches too: the device may have some of them.
    """
    disk = SyncedDisk()
    small = replace(config, segment_bytes=150)
    log = open_storage(small, disk, 0).log
    for offset in range(8):
        if offset == synced:
            log.flush()
        log.append(bytearray(data_batch([b"value"], 0, offset, 1)))
    if synced == 8:
        log.flush()
    disk.sizes.clear()
    disk.names.clear()
    log.truncate_to(end)
    folder = os.path.join(small.log_dir, "__cluster_metadata-0")
    files = {name for name in os.listdir(folder) if name.endswith(".log")}
    assert {name for name in disk.names[folder] if name.endswith(".log")} == files
    newest = os.path.join(folder, max(files))
    assert disk.sizes[newest] == os.path.getsize(newest)
    log.close()
