"""The interface of a coordinator's shard: it decides what should become durable, and replays what did.

A decision changes no hard state. Its records are replayed at once, so the next decision sees them, and appended in one
batch, all or none, when the turn ends; large and transactional decisions are appended first and then replayed. Replies
are sent when the batch is committed. Soft state (the members that wait in a join) may
change while deciding: it is lost with the shard, and requests that wait are answered with an error.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple, Protocol, TypeVar

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import MetadataImage
from klamm.model.errors import KlammError, RemoteProtocolError
from klamm.protocol.codec import decode, encode
from klamm.protocol.schema import declaration

_INT16 = Struct(">h")

ReplyTo = Callable[[Any], None]
"""Where one request is answered, once: called by the runtime with a response or a KlammError. Opaque to shards."""


class Now(NamedTuple):
    """The time on two clocks: `ms` is monotonic and for deadlines, `wall_ms` is for timestamps in records."""

    ms: int
    wall_ms: int


class CoordinatorRecord(NamedTuple):
    """A record of an internal topic as it lies on disk; without a value it removes what the key names."""

    key: bytes
    value: bytes | None


class LoggedEvent(NamedTuple):
    """A log line for operators: a text and fields."""

    text: str
    fields: Mapping[str, Any]


class Decision(NamedTuple):
    """The result of deciding: records to make durable, then replies to send.

    Without records the replies wait until everything decided before them is committed, so that no reply shows what
    could still be lost.
    """

    records: tuple[CoordinatorRecord, ...] = ()
    """All of them or none, unless `atomic` is false."""
    replies: tuple[tuple[ReplyTo, Any], ...] = ()
    """Where to send each response or KlammError."""
    timers: tuple[tuple[Hashable, int | None], ...] = ()
    """(key, deadline on the monotonic clock) to set or move; None cancels. `on_timer` is called once per deadline."""
    events: tuple[LoggedEvent, ...] = ()
    """Logged once the records are appended."""
    producer_id: int = -1
    producer_epoch: int = -1
    """With a producer id the records belong to that producer's transaction and take effect with its commit marker."""
    atomic: bool = True
    """False lets the runtime write many records in several batches: each must make sense without the others."""


class Shard(Protocol):
    """The state of one partition of an internal topic."""

    def replay(
        self, record: CoordinatorRecord, offset: int = -1, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        """Apply a record; the only way hard state changes. `offset` is its place in the log."""

    def replay_run(
        self, records: Sequence[CoordinatorRecord], offset: int, producer_id: int, producer_epoch: int
    ) -> None:
        """Apply records at consecutive offsets, the first of them at `offset`."""
        for at, record in enumerate(records, offset):
            self.replay(record, at, producer_id, producer_epoch)

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Apply the marker that ends a producer's transaction in this partition."""

    def on_loaded(self, image: MetadataImage, now: Now) -> Decision:
        """Return what is due once all records are replayed, before the first request."""

    def on_timer(self, key: Hashable, now: Now) -> Decision:
        """Return what follows from a deadline that has passed."""

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage, now: Now) -> Decision:
        """Return what follows from a change of the cluster metadata."""

    def waiting(self) -> Iterable[ReplyTo]:
        """Return where requests are to be answered that wait for a later decision; used when the shard is unloaded."""


def encode_key(key: object) -> bytes:
    """Encode a typed key: its record type, then its fields."""
    return _INT16.pack(declaration(type(key)).api_key or 0) + encode(key, 0)


def encode_value(value: object, version: int = 0) -> bytes:
    """Encode a typed value: its version, then its fields."""
    return _INT16.pack(version) + encode(value, version)


def make_record(key: object, value: object | None, version: int = 0) -> CoordinatorRecord:
    """Return the record of a typed key and value; without a value a tombstone."""
    return CoordinatorRecord(encode_key(key), None if value is None else encode_value(value, version))


V = TypeVar("V")


def record_type(key: bytes) -> int:
    """Return the record type that a key begins with."""
    if len(key) < 2:
        raise RemoteProtocolError(f"a key of {len(key)} bytes has no record type")
    return int(_INT16.unpack_from(key)[0])


def decode_key(cls: type[V], key: bytes) -> V:
    """Decode a key whose record type is that of `cls`."""
    # Kafka writes the record type where a value has its version, so the fields of a key have a single version.
    return decode(cls, 0, key, 2)[0]


def decode_value(cls: type[V], value: bytes) -> V:
    """Decode a value in the version it was written in."""
    if len(value) < 2:
        raise RemoteProtocolError(f"a value of {len(value)} bytes has no version")
    version = int(_INT16.unpack_from(value)[0])
    first, last = declaration(cls).versions
    # Written by a newer broker: the last known layout would misread it without noticing.
    if not first <= version <= last:
        raise RemoteProtocolError(f"{cls.__name__} v{version} is not supported")
    return decode(cls, version, value, 2)[0]


def refusal(reply_to: ReplyTo, error: KlammError) -> Decision:
    """Return a decision that only answers with an error."""
    return Decision(replies=((reply_to, error),))
