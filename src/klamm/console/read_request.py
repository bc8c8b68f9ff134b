"""What a reading of records is asked for, what it returns, and when it stops; records decoded, masked and filtered."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from klamm.client.filter import Filter
from klamm.console.core.record_views import HIDDEN, SchemaNote, ShownRecord, mask_header, mask_key, mask_value
from klamm.console.record_decoder import BytesRecord, LookupBudget, RecordDecoder, names_schema

BY_TIME: Final = attrgetter("timestamp", "partition", "offset")
POLL_S: Final = 0.25
READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What to read."""

    topic: str
    start: str = "last"
    """last, earliest, offset, time, or resume."""
    partition: int | None = None
    offset: int = 0
    time_ms: int = 0
    limit: int = 50
    where: Filter | None = None
    key: bytes | None = None
    positions: tuple[tuple[int, int], ...] = ()
    """Partition and offset, to go on where an earlier reading stopped: from there on, or with `last` before it."""
    masked: Sequence[Sequence[str]] = ()
    """Paths of fields that are hidden."""
    decoder: RecordDecoder | None = None
    """Of the registry; without it bytes are shown as they are."""
    encoded_keys: bool = False
    """Whether keys have a schema: the key that is searched for is not what the partition was computed from."""
    isolation: str = READ_UNCOMMITTED


@dataclass(slots=True)
class ReadResult:
    """Records, and how far the reading came."""

    records: list[ShownRecord] = field(default_factory=list)
    scanned: int = 0
    scanned_bytes: int = 0
    partitions: list[int] = field(default_factory=list)
    """The partitions that were read: one for a key."""
    positions: dict[int, int] = field(default_factory=dict)
    """Where to go on in each partition that was not read to its end, or backwards to its beginning."""
    stopped: str = ""
    """limit, time, bytes; empty when everything was read."""


class ReadLimits:
    """How long a reading may take, and how many bytes it may scan."""

    def __init__(self, clock_s: Callable[[], float], seconds: float, bytes_max: int) -> None:
        self._clock_s = clock_s
        self._deadline_s = clock_s() + seconds
        self._bytes_max = bytes_max

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return self._clock_s() >= self._deadline_s

    def find_stop(self, result: ReadResult) -> str:
        """Return why a reading stops here; empty when it goes on."""
        if self.is_late:
            return "time"
        return "bytes" if result.scanned_bytes > self._bytes_max else ""


async def show_all(records: Sequence[BytesRecord], request: ReadRequest, budget: LookupBudget) -> Sequence[ShownRecord]:
    """Return records decoded, then masked: a filter must not see a hidden field in any form."""
    if request.decoder is None:
        shown = [show_record(record) for record in records]
    else:
        # In a thread: the registry is waited for there, and a thousand records take long to decode.
        shown = await asyncio.to_thread(request.decoder.decode_all, records, budget)
    return [mask_record(record, request.masked) for record in shown] if request.masked else shown


def show_record(record: BytesRecord) -> ShownRecord:
    """Return a record with the bytes that it has."""
    return ShownRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        tuple(record.headers or ()),
    )


def passes(record: ShownRecord, request: ReadRequest) -> bool:
    """Whether a record has the key and passes the filter."""
    # Of a masked topic by what is visible of the key: a search must not confirm a guess of the rest.
    if request.key is not None and record.key != mask_key(request.key, request.masked):
        return False
    return request.where is None or request.where(record)


def mask_record(record: ShownRecord, masked: Sequence[Sequence[str]]) -> ShownRecord:
    """Return the record without hidden fields in key, value and headers."""
    key, note = record.key, record.key_schema
    is_decoded = note is not None and not note.error
    # Bytes of a schema that were not decoded may have any field.
    is_encoded = key is not None and not is_decoded and names_schema(key, "key", record.headers)
    return dataclasses.replace(
        record,
        key=HIDDEN if is_encoded else mask_key(key, masked),
        value=mask_value(record.value, masked),
        headers=tuple((name, mask_header(name, data, masked)) for name, data in record.headers),
        key_schema=_hide_error(note),
        value_schema=_hide_error(record.value_schema),
    )


def _hide_error(note: SchemaNote | None) -> SchemaNote | None:
    """A validator quotes the value that it refuses."""
    return note if note is None or not note.error else dataclasses.replace(note, error="it could not be decoded")
