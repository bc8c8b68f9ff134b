"""From committed bytes to images: replays the metadata log and tells everyone who follows it.

The loader takes batches and snapshots as a raft listener hears of them. It is pure: publishers are called in the order
they were added, in the caller's own turn.
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
    """Someone whose state follows the cluster's metadata."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """The image moved from `delta.image` to `image`."""


class MetadataLoader:
    """Keeps the newest committed image and publishes every step towards it.

    A metadata transaction becomes visible at its end, at once; an aborted one never does. Offsets of records inside
    an open transaction do not move `image.provenance`.
    """

    def __init__(self, publishers: Iterable[Publisher] = (), image: MetadataImage = EMPTY_IMAGE) -> None:
        self.image = image
        self._publishers = list(publishers)
        self._transaction: list[MetadataRecord] | None = None
        self._visible_offset = -1

    def add_publisher(self, publisher: Publisher) -> None:
        """Let `publisher` follow from here on; it first hears of the whole image as one change."""
        self._publishers.append(publisher)
        if self.image.provenance.offset >= 0:
            _tell(publisher, MetadataDelta.between(EMPTY_IMAGE, self.image), self.image)

    def on_commit(self, first_offset: int, epoch: int, values: Sequence[bytes], append_time_ms: int = -1) -> None:  # noqa: ARG002
        """A batch of the log was committed."""
        self.load([decode_record(value) for value in values], first_offset + len(values) - 1, epoch)

    def on_snapshot(self, offset: int, epoch: int, values: Iterable[bytes]) -> None:
        """The state up to, not including, `offset` is that of a snapshot; what was known before is replaced by it."""
        rebuilt = MetadataDelta(EMPTY_IMAGE)
        for value in values:
            rebuilt.replay(decode_record(value))
        image = rebuilt.apply(offset - 1, epoch)
        self._transaction = None
        self._publish(MetadataDelta.between(self.image, image), image)

    def load(self, records: Sequence[MetadataRecord], last_offset: int, epoch: int) -> None:
        """Let decoded records count, the last of which stands at `last_offset`."""
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
        if visible > self.image.provenance.offset:
            self._publish(delta, delta.apply(visible, epoch))

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.image = image
        for publisher in self._publishers:
            _tell(publisher, delta, image)


def _tell(publisher: Publisher, delta: MetadataDelta, image: MetadataImage) -> None:
    """A publisher that fails keeps neither the others nor the quorum from going on: the change is committed."""
    try:
        publisher.on_metadata_update(delta, image)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one publisher, the others are told
        name, offset = type(publisher).__name__, image.provenance.offset
        log.failure("publisher cannot follow the metadata", error, publisher=name, offset=offset)
