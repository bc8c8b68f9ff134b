"""One raw connection with kio's codec: third-party code encodes requests and decodes replies.

    wire.call("metadata", 12, topics=[{"name": "t"}])

Requests are written as plain values: dicts for structs, lists, numbers of milliseconds, 16 bytes for ids. A field the
version does not have is left out, one no version has is an error. Replies are kio's objects.
"""

import contextlib
import dataclasses
import datetime as dt
import functools
import io
import itertools
import socket
import struct
import types
import uuid
from typing import Any, Self, Union, get_args, get_origin

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import OutOfBoundValue
from kio.static import _phantom
from kio.static.constants import EntityType

from klamm.protocol.apis import APIS
from klamm.protocol.codec import decode
from klamm.records.batch import DecodedRecord, build_batch, iter_batches

# kio's types register strategies as they are imported: seconds in which hypothesis looks at every character there is.
_phantom.hypothesis = None

API_KEYS = {name: key for key, name in api_key_map.items()}
NOW_MS = 1_700_000_000_000
TOPIC_IDS_SINCE = 13
"""Produce and Fetch name topics by id from this version on (KIP-516)."""
_names = itertools.count()


def unique(prefix: str = "t") -> str:
    """A topic name no other test uses."""
    return f"{prefix}-{uuid.uuid4().hex[:8]}-{next(_names)}"


def batch(*values: bytes | None, **options: Any) -> bytes:
    """A record batch of values without keys, as a producer would send it."""
    timestamp = options.pop("timestamp", NOW_MS)
    key = options.pop("key", None)
    return bytes(build_batch([(timestamp, key, value, ()) for value in values], **options))


def rows(records: bytes | None) -> list[DecodedRecord]:
    """All records of a fetched section; every checksum is verified."""
    decoded: list[DecodedRecord] = []
    for view in iter_batches(records or b""):
        view.check_crc()
        decoded += view.decode()
    return decoded


class Wire:
    """A blocking connection; `call` sends and receives, `send` and `receive` do one each."""

    def __init__(self, port: int, *, client_id: str | None = "wire", timeout: float = 20.0) -> None:
        self.client_id = client_id
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_ids = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def call(self, api: str, version: int, /, **fields: Any) -> Any:
        """One request and its reply."""
        return self.receive(api, version, self.send(api, version, **fields))

    def send(self, api: str, version: int, /, **fields: Any) -> int:
        """One request; returns its correlation id."""
        correlation_id = next(self._correlation_ids)
        self.send_frame(request_bytes(api, version, correlation_id, self.client_id, **fields))
        return correlation_id

    def send_frame(self, body: bytes) -> None:
        self.sock.sendall(struct.pack(">i", len(body)) + body)

    def receive(self, api: str, version: int, correlation_id: int | None = None) -> Any:
        """The next reply, read as one to this API and version; all of its bytes must be used."""
        return parse_reply(self.receive_frame(), api, version, correlation_id)

    def receive_frame(self) -> bytes:
        size = struct.unpack(">i", self._exactly(4))[0]
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise ConnectionResetError(f"closed after {len(data)} of {size} bytes")
            data += more
        return bytes(data)

    def is_closed_by_peer(self, within: float = 10.0) -> bool:
        """Whether the peer closes the connection without a word."""
        self.sock.settimeout(within)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            return self.sock.recv(1) == b""
        return True

    def is_silent(self, for_seconds: float = 0.15) -> bool:
        """Whether nothing comes for a while."""
        before = self.sock.gettimeout()
        self.sock.settimeout(for_seconds)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(before)
        return False

    # Shorthands of many tests

    def create_topic(self, name: str | None = None, partitions: int = 1, **configs: str) -> str:
        """A new topic; settings are written with underscores for dots."""
        name = name or unique()
        settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": settings}
        reply = self.call("create_topics", 7, topics=[topic], timeout=10_000)
        assert reply.topics[0].error_code == 0, reply.topics[0]
        return name

    def topic_id(self, name: str) -> bytes:
        return self.call("metadata", 12, topics=[{"name": name}]).topics[0].topic_id.bytes

    def produce(
        self, topic: str, records: bytes | None, *, version: int = 9, acks: int = -1, partition: int = 0
    ) -> Any:
        """One batch to one partition; the partition's part of the reply."""
        fields = produce_fields(topic, records, acks=acks, partition=partition)
        if version >= TOPIC_IDS_SINCE:
            fields["topic_data"][0]["topic_id"] = self.topic_id(topic)
        if acks == 0:
            self.send("produce", version, **fields)
            return None
        return self.call("produce", version, **fields).responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, *, version: int = 12, partition: int = 0, **fields: Any) -> Any:
        """One partition from an offset; the partition's part of the reply."""
        part_max = fields.pop("partition_max_bytes", 1 << 20)
        part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": part_max}
        part["current_leader_epoch"] = fields.pop("current_leader_epoch", -1)
        part["last_fetched_epoch"] = fields.pop("last_fetched_epoch", -1)
        named: dict[str, Any] = {"topic": topic, "partitions": [part]}
        if version >= TOPIC_IDS_SINCE:
            named["topic_id"] = self.topic_id(topic)
        fields = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 25, **fields}
        return self.call("fetch", version, replica_id=-1, topics=[named], **fields).responses[0].partitions[0]

    def values(self, topic: str, offset: int = 0, partition: int = 0) -> list[bytes | None]:
        """The values of a partition from an offset to its end."""
        values: list[bytes | None] = []
        while True:
            part = self.fetch(topic, offset, partition=partition)
            assert part.error_code == 0, part
            got = [row for row in rows(part.records) if row.offset >= offset]
            if not got:
                return values
            assert [row.offset for row in got] == list(range(offset, offset + len(got))), "offsets are not contiguous"
            values += [row.value for row in got]
            offset = got[-1].offset + 1

    def end_offset(self, topic: str, partition: int = 0) -> int:
        return self.list_offset(topic, -1, partition=partition).offset

    def list_offset(self, topic: str, timestamp: int, *, version: int = 7, partition: int = 0, **fields: Any) -> Any:
        """ListOffsets for one partition; the partition's part of the reply."""
        part = {"partition_index": partition, "timestamp": timestamp}
        part["current_leader_epoch"] = fields.pop("current_leader_epoch", -1)
        topics = [{"name": topic, "partitions": [part]}]
        reply = self.call("list_offsets", version, replica_id=-1, topics=topics, **fields)
        return reply.topics[0].partitions[0]


def produce_fields(topic: str, records: bytes | None, *, acks: int = -1, partition: int = 0) -> dict[str, Any]:
    """The fields of a Produce request for one partition."""
    parts = [{"index": partition, "records": records}]
    return {"acks": acks, "timeout": 10_000, "topic_data": [{"name": topic, "partition_data": parts}]}


def parse_reply(frame: bytes, api: str, version: int, correlation_id: int | None = None) -> Any:
    """A reply's frame as kio reads it."""
    cls = load_response_schema(API_KEYS[api], version)
    header, used = entity_reader(cls.__header_schema__)(frame, 0)
    if correlation_id is not None:
        assert header.correlation_id == correlation_id
    try:
        reply, size = entity_reader(cls)(frame, used)
    except OutOfBoundValue:
        # kio has no -1 in place of a time, which Kafka answers where a delegation token is refused.
        response, end = decode(APIS[API_KEYS[api]].response, version, frame, used)
        reply, size = response, end - used
    assert used + size == len(frame), "bytes are left over after the reply"
    return reply


def request_bytes(
    api: str, version: int, correlation_id: int = 1, client_id: str | None = "wire", /, **fields: Any
) -> bytes:
    """A whole request without its length."""
    cls = load_request_schema(API_KEYS[api], version)
    header = cls.__header_schema__
    known = {
        "request_api_key": API_KEYS[api],
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": client_id,
    }
    out = io.BytesIO()
    entity_writer(header)(out, header(**{f.name: known[f.name] for f in dataclasses.fields(header)}))
    entity_writer(cls)(out, _build(api, cls, fields))
    return out.getvalue()


def _build(api: str, cls: type, values: dict[str, Any]) -> Any:
    unknown = values.keys() - _all_fields(api, cls.__name__)
    if unknown:
        raise TypeError(f"{cls.__name__} has no field {', '.join(sorted(unknown))} in any version")
    made = {}
    for field in dataclasses.fields(cls):
        if field.name in values:
            made[field.name] = _value(api, field, field.type, values[field.name])
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            made[field.name] = _zero(api, field, field.type)
    return cls(**made)


@functools.cache
def _all_fields(api: str, struct_name: str) -> frozenset[str]:
    names: set[str] = set()
    for version in schema_name_map[api]:
        struct = getattr(load_payload_module(API_KEYS[api], version, EntityType.request), struct_name, None)
        if struct is not None:
            names |= {field.name for field in dataclasses.fields(struct)}
    return frozenset(names)


def _bare(kind: Any) -> Any:
    """A type without its `| None`."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def _value(api: str, field: Any, kind: Any, value: Any) -> Any:
    kind = _bare(kind)
    if value is None:
        return None
    if get_origin(kind) is tuple:
        return tuple(_value(api, field, get_args(kind)[0], item) for item in value)
    if dataclasses.is_dataclass(kind):
        return _build(api, kind, value)
    wire_type = field.metadata.get("kafka_type", "")
    if wire_type.startswith("timedelta"):
        return dt.timedelta(milliseconds=value)
    if wire_type == "uuid":
        return uuid.UUID(bytes=bytes(value))
    return value


def _zero(api: str, field: Any, kind: Any) -> Any:
    if _bare(kind) is not kind:
        return None
    if get_origin(kind) is tuple:
        return ()
    if dataclasses.is_dataclass(kind):
        return _build(api, kind, {})
    wire_type = field.metadata["kafka_type"]
    if wire_type.startswith("timedelta"):
        return dt.timedelta()
    return {"string": "", "bool": False, "bytes": b"", "records": b"", "uuid": None}.get(wire_type, 0)
