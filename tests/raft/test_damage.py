"""A bit that has turned over in a voter's folder: it opens as it was, or not at all."""

import random

import pytest

from klamm.model.errors import KlammError
from klamm.raft.codec.batches import data_batch
from klamm.raft.config import RaftConfig
from klamm.raft.core.messages import OffsetAndEpoch
from klamm.raft.core.quorum import ReplicaKey
from klamm.raft.core.roles import ElectionState
from klamm.raft.core.voter_history import VoterConfiguration
from klamm.raft.recovery import open_storage
from simulation.disk import Image, SimDisk

NOW = 1_000_000
DIRECTORY = bytes(range(16))
FLIPS = 8
"""Of every file."""


def disk_of(image):
    return SimDisk(image, lambda: 0, lambda _: None)


def config_of(kraft_version):
    voters = {node: ("localhost", 9090 + node, DIRECTORY) for node in (1, 2, 3)}
    return RaftConfig(1, voters, "/data", directory_id=DIRECTORY, kraft_version=kraft_version, segment_bytes=600)


def write_folder(config, image):
    """A log of three epochs in several segments, closed properly, with two snapshots and a vote."""
    storage = open_storage(config, disk_of(image), NOW)
    for epoch in (1, 4, 5):
        for _ in range(4):
            offset = storage.log.end_offset
            storage.log.append(data_batch([b"%d" % epoch * 40, b"x" * 60], NOW, offset, epoch))
    storage.quorum_state.write(ElectionState(6, None, ReplicaKey(2, DIRECTORY)), config.initial_voters)
    for snapshot_id in (OffsetAndEpoch(0, 0), OffsetAndEpoch(8, 1)):
        storage.snapshots.write(
            snapshot_id,
            [b"%d" % snapshot_id.offset],
            now_ms=NOW,
            last_contained_log_timestamp=NOW,
            configuration=VoterConfiguration(config.voter_set, config.kraft_version),
        )
    storage.log.close()


def content_of(config, image):
    """What a member believes after opening its folder."""
    storage = open_storage(config, disk_of(image), NOW)
    data, log = b"", storage.log
    offset = log.start_offset
    while offset < log.end_offset and (piece := log.read(offset, 1 << 20)):
        data += piece
        offset = log.end_offset if len(data) > 1 << 20 else offset + 2 * piece.count(b"x" * 60)
    log.close()
    return storage.election, log.start_offset, log.end_offset, log.epochs(), data, storage.voter_history.latest


@pytest.mark.parametrize("kraft_version", [0, 1])
def test_no_bit_of_a_voters_folder_makes_it_believe_something_else(kraft_version):
    """Breaks when recovery takes a closed segment, the epochs, the voters of a snapshot or the vote on trust."""
    config, before = config_of(kraft_version), Image()
    write_folder(config, before)
    expected = content_of(config, before.snapshot())
    files = {name: file for name, file in before.names.items() if getattr(file, "data", b"")}
    assert sum(name.endswith(".log") for name in files) > 2
    chance = random.Random(kraft_version)
    refusals = []
    for name in sorted(files):
        for turn in range(FLIPS):
            image = before.snapshot()
            image.flip(chance, name.__eq__)
            try:
                content = content_of(config, image)
            except KlammError as error:
                refusals.append(str(error))
            else:
                assert content == expected, (name, turn)
    assert refusals
    assert all("__cluster_metadata-0" in refusal for refusal in refusals), refusals
