"""Writes snapshots of the metadata: after a number of bytes of records, or some time after the first of them."""

import asyncio
from collections.abc import Callable

from klamm.metadata.loader import MetadataLoader
from klamm.metadata.records import encode_record
from klamm.model.clock import Clock
from klamm.raft import RaftDriver
from klamm.telemetry.log import get_logger

log = get_logger("metadata")


class Snapshotter:
    """A raft listener in front of the metadata loader that counts bytes and writes snapshots."""

    def __init__(self, loader: MetadataLoader, clock: Clock, *, bytes_max: int, interval_ms: int) -> None:
        self._loader = loader
        self._clock = clock
        self._bytes_max = bytes_max
        self._interval_ms = interval_ms
        self._bytes = 0
        self._since_ms = clock.monotonic_ms()
        self._writing: asyncio.Task[None] | None = None
        self._leader_id: int | None = None
        self._leader_watchers: list[Callable[[int | None, int], None]] = []

    def add_leader_watcher(self, watcher: Callable[[int | None, int], None]) -> None:
        """Call `watcher` with every leader of the quorum, once all records before its epoch are applied here."""
        self._leader_watchers.append(watcher)

    def on_commit(self, first_offset: int, epoch: int, values: list[bytes], append_time_ms: int) -> None:
        """Count the bytes and pass the records on."""
        # The interval counts from the first record that is not in a snapshot.
        if not self._bytes:
            self._since_ms = self._clock.monotonic_ms()
        self._bytes += sum(map(len, values))
        self._loader.on_commit(first_offset, epoch, values, append_time_ms)

    def on_snapshot(self, offset: int, epoch: int, values: list[bytes]) -> None:
        """Pass a snapshot from the leader on."""
        self._loader.on_snapshot(offset, epoch, values)

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        """Log the new leader and call the watchers."""
        if leader_id is not None:
            log.info("metadata quorum has a leader", leader=leader_id, epoch=epoch)
        elif self._leader_id is not None:
            log.info("metadata quorum lost its leader", leader=self._leader_id, epoch=epoch)
        self._leader_id = leader_id
        for watcher in self._leader_watchers:
            watcher(leader_id, epoch)

    def maybe_write(self, raft: RaftDriver) -> None:
        """Start a snapshot if one is due and none is being written."""
        age_ms = self._clock.monotonic_ms() - self._since_ms
        due = self._bytes >= self._bytes_max or (self._bytes > 0 and 0 < self._interval_ms <= age_ms)
        if due and (self._writing is None or self._writing.done()):
            # Records that arrive while the snapshot is being written count for the next one.
            self._bytes = 0
            self._writing = asyncio.get_running_loop().create_task(self.write(raft), name="metadata snapshot")

    async def write(self, raft: RaftDriver) -> None:
        """Write the newest image as a snapshot."""
        # Immutable, so records that are applied while it is written do not change it.
        image = self._loader.image
        # A snapshot is named after the first offset that it does not contain, as in Kafka.
        offset, epoch = image.provenance.offset + 1, image.provenance.epoch
        if offset > 0:
            await raft.write_snapshot(offset, epoch, (encode_record(record) for record in image.to_records()))
            log.info("metadata snapshot written", offset=offset, epoch=epoch)
