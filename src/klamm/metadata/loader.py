"""Loading the metadata log: replays committed batches and snapshots into images, and calls publishers.

The loader is the listener of the quorum. Publishers are called synchronously, in the order in which they were added.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE, MetadataImage
from klamm.metadata.records import decode_record
from klamm.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
)
from klamm.telemetry.log import get_logger

log = get_logger("metadata")


class Publisher(Protocol):
    """A component whose state follows the cluster's metadata."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """The image changed from `delta.image` to `image`."""


class MetadataLoader:
    """Keeps the newest committed image, and publishes every change of it.

    A metadata transaction (KIP-868) becomes visible when it ends; an aborted one never does. Records of an open
    transaction do not advance `image.provenance`.
    """

    def __init__(self, publishers: Iterable[Publisher] = (), image: MetadataImage = EMPTY_IMAGE) -> None:
        self.image = image
        self._publishers = list(publishers)
        self._transaction: list[MetadataRecord] | None = None
        self._visible_offset = -1

    def add_publisher(self, publisher: Publisher) -> None:
        """Add a publisher; its first call has the complete image as one change."""
        self._publishers.append(publisher)
        if self.image.provenance.offset >= 0:
            # It has missed every change so far, so it gets all of them as one.
            _publish_to(publisher, MetadataDelta.between(EMPTY_IMAGE, self.image), self.image)

    def on_commit(self, first_offset: int, epoch: int, values: Sequence[bytes], append_time_ms: int = -1) -> None:  # noqa: ARG002
        """Apply a committed batch."""
        self.load([decode_record(value) for value in values], first_offset + len(values) - 1, epoch)

    def on_snapshot(self, offset: int, epoch: int, values: Iterable[bytes]) -> None:
        """Replace the image by a snapshot of everything below `offset`."""
        delta = MetadataDelta(EMPTY_IMAGE)
        for value in values:
            delta.replay(decode_record(value))
        # A snapshot is named by the offset after its last record.
        image = delta.apply(offset - 1, epoch)
        # A snapshot is taken between transactions, never inside one.
        self._transaction = None
        self._publish(MetadataDelta.between(self.image, image), image)

    def load(self, records: Sequence[MetadataRecord], last_offset: int, epoch: int) -> None:
        """Apply decoded records, the last of which has `last_offset`."""
        # One delta for all records: publishers see a batch as a whole.
        delta = MetadataDelta(self.image)
        for offset, record in enumerate(records, last_offset - len(records) + 1):
            if isinstance(record, BeginTransactionRecord):
                self._transaction = []
                self._visible_offset = offset - 1
            elif isinstance(record, EndTransactionRecord):
                delta.replay_all(self._transaction or ())
                self._transaction = None
            elif isinstance(record, AbortTransactionRecord):
                self._transaction = None
            elif self._transaction is not None:
                self._transaction.append(record)
            else:
                delta.replay(record)
        visible = last_offset if self._transaction is None else self._visible_offset
        # A batch inside an open transaction changes nothing that readers may see.
        if visible > self.image.provenance.offset:
            self._publish(delta, delta.apply(visible, epoch))

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.image = image
        for publisher in self._publishers:
            _publish_to(publisher, delta, image)


def _publish_to(publisher: Publisher, delta: MetadataDelta, image: MetadataImage) -> None:
    """Call a publisher; its failure is logged, because the change is committed and the others have to follow it."""
    try:
        publisher.on_metadata_update(delta, image)
    except Exception as error:  # noqa: BLE001 - a faulty publisher must not affect the others
        name, offset = type(publisher).__name__, image.provenance.offset
        log.failure("metadata publisher failed", error, publisher=name, offset=offset)
