"""Metadata records replayed into a cluster, and requests that its controller decides.

Records that contradict the state before them are refused as a whole: neither the image nor any component that follows
it has a part of them. Records that are accepted must survive a snapshot, and a controller must be able to go on.
"""

import random
import struct
from dataclasses import fields, is_dataclass
from typing import Any

from fuzz.requests import changed
from fuzz.target import join_parts, split_parts
from harness.made_messages import MessageMaker
from klamm.controller import CatalogValidator, Controller, ControllerConfig
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE, MetadataImage
from klamm.metadata.image_records import image_records
from klamm.metadata.loader import MetadataLoader
from klamm.metadata.records import RECORD_TYPES, decode_record, encode_record
from klamm.model.clock import SystemClock
from klamm.model.errors import KlammError, ProtocolError
from klamm.protocol import APIS, decode, encode
from klamm.protocol.messages import metadata_records as r
from klamm.protocol.schema import declaration
from klamm.security.core.authorizer import StandardAuthorizer
from klamm.security.core.client_quotas import ClientQuotas
from klamm.security.core.quota_windows import WindowConfig
from klamm.server.requests.access.control import AccessControl
from klamm.server.requests.access.quotas import BrokerQuotas

RECORD_REFUSALS = (ProtocolError, LookupError)
REQUEST_REFUSALS = (ProtocolError, KlammError)
NOW_MS = 1_000_000
_TOPIC_IDS = tuple(bytes([number]) * 16 for number in (1, 2, 3))
_ACL_IDS = tuple(bytes([number]) * 16 for number in (11, 12))
_BROKERS = (1, 2, 3)
_NAMES = ("orders", "payments", "new")
_QUOTA_KEYS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
_TOPIC_CONFIGS = ("retention.ms", "cleanup.policy", "min.insync.replicas", "nonsense")


def _first_records() -> list[r.MetadataRecord]:
    records: list[r.MetadataRecord] = [
        r.FeatureLevelRecord(name="metadata.version", feature_level=30),
        r.FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1),
    ]
    records += [
        r.RegisterBrokerRecord(
            broker_id=broker,
            broker_epoch=broker,
            incarnation_id=bytes([broker]) * 16,
            end_points=[r.BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=9000 + broker)],
            features=[r.BrokerFeature(name="metadata.version", min_supported_version=7, max_supported_version=30)],
            rack=None,
            fenced=False,
            log_dirs=[bytes([100 + broker]) * 16],
        )
        for broker in _BROKERS
    ]
    for name, topic_id in zip(_NAMES[:2], _TOPIC_IDS, strict=False):
        records.append(r.TopicRecord(name=name, topic_id=topic_id))
        records += [
            r.PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=[1, 2, 3],
                isr=[1, 2],
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
                directories=[bytes([100 + broker]) * 16 for broker in _BROKERS],
            )
            for index in range(2)
        ]
    records += [
        r.AccessControlEntryRecord(
            id=acl_id,
            resource_type=2,
            resource_name="orders",
            pattern_type=3,
            principal="User:alice",
            host="*",
            operation=3,
            permission_type=permission,
        )
        for acl_id, permission in zip(_ACL_IDS, (2, 3), strict=True)
    ]
    return records


def _first_image() -> MetadataImage:
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_all(_first_records())
    return delta.apply(100, 1)


IMAGE = _first_image()


class _Progress:
    """A quorum whose every record is committed."""

    high_watermark = 0
    leader = (1, 1)


class _Net:
    """Connections, of which there are none."""

    throttle_ip = None

    def channels(self) -> tuple[()]:
        return ()


class _Strict:
    """Passes changes on to a component of a node, whose failure the loader would only log."""

    def __init__(self, component: Any) -> None:
        self._component = component
        self.error: Exception | None = None
        self.changes = 0

    def __str__(self) -> str:
        return type(self._component).__name__

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.changes += 1
        try:
            self._component.on_metadata_update(delta, image)
        except Exception as error:  # noqa: BLE001 - kept, and raised by the target
            self.error = error


# --- records ---------------------------------------------------------------------------------------------------------


def make_records(source: random.Random) -> bytes:
    """One to six records about brokers, topics and entries that mostly exist, each behind its length."""
    records = []
    for _ in range(source.randint(1, 6)):
        cls = RECORD_TYPES[source.choice(sorted(RECORD_TYPES))]
        version = source.randint(*declaration(cls).versions)
        record = MessageMaker(source.getrandbits(64)).message(cls, version)
        _align(source, record)
        records.append(encode_record(record, version))
    return join_parts(records)


def harm_records(source: random.Random, data: bytes) -> bytes:
    """Harm one record, or repeat, remove or exchange some; lengths agree."""
    records = split_parts(data)
    at = source.randrange(len(records))
    match source.randrange(5):
        case 0 | 1:
            records[at] = changed(source, records[at].ljust(8, b"\0"))
        case 2:
            records.insert(source.randrange(len(records) + 1), records[at])
        case 3:
            source.shuffle(records)
        case 4:
            records += split_parts(make_records(source))
    return join_parts(records)


def replay_records(data: bytes) -> None:
    """Load records as a node does, in one batch, then as a snapshot, and let a controller take over."""
    values = split_parts(data)
    authorizer = StandardAuthorizer()
    quotas = BrokerQuotas(WindowConfig(), SystemClock(), _Net(), _no_time)
    components = (_Strict(AccessControl(authorizer, _Progress())), _Strict(quotas))
    loader = MetadataLoader(components, IMAGE)
    try:
        loader.on_commit(101, 1, values)
    except RECORD_REFUSALS:
        assert loader.image is IMAGE, "records were refused and the image has changed"
        assert not any(component.changes for component in components), "refused records were published"
        assert _encode(IMAGE) == _ENCODED, "records were refused and the image before them has changed"
        raise
    for component in components:
        # Not the error itself, which may look like a refusal of the records.
        assert component.error is None, f"accepted records fail {component}: {component.error!r}"
    image = loader.image
    encoded = _encode(image)
    assert {topic.id for topic in image.topics.by_name.values()} == image.topics.by_id.keys(), "names and ids differ"
    # The entries that an authorizer has are those of the image, all of them.
    if image.acls != IMAGE.acls:
        assert authorizer._entries.keys() >= image.acls.keys() - IMAGE.acls.keys()
    for entity in image.client_quotas:
        _use_quotas(quotas.clients, dict(entity.parts))
    try:
        rebuilt = MetadataLoader()
        rebuilt.on_snapshot(200, 1, encoded)
        controller = _make_controller(image)
        # A minute later no broker has sent a heartbeat: the controller fences one, and moves what it leads.
        records = controller.tick(NOW_MS + 60_000).records
        controller.replay(decode_record(encode_record(record)) for record in records)
    except RECORD_REFUSALS as error:
        raise AssertionError(f"accepted records cannot be gone on with: {error!r}") from error
    assert sorted(_encode(rebuilt.image)) == sorted(encoded), "a snapshot loses something"


def _use_quotas(quotas: ClientQuotas, entity: dict[str, str | None]) -> None:
    """Measure a request of a client of the entity, in which every quota is exceeded."""
    user, client_id, address = (entity.get(kind) or "any" for kind in ("user", "client-id", "ip"))
    quotas.record_connection(address, NOW_MS)
    limits = quotas.find(user, client_id, NOW_MS)
    for quota in limits[:3] if limits is not None else ():
        if quota is not None:
            quotas.fetch_bytes_max(quota)
            assert quota.record(1e9, NOW_MS) >= 0
    if limits is not None and limits.mutations is not None:
        limits.mutations.bucket.take(1e9, limits.mutations.limit, NOW_MS)
        assert limits.mutations.bucket.throttle_ms(limits.mutations.limit, NOW_MS) >= 0


def _encode(image: MetadataImage) -> list[bytes]:
    return [encode_record(record) for record in image_records(image)]


_ENCODED = _encode(IMAGE)


def _no_time() -> int:
    return 0


def _align(source: random.Random, message: Any) -> None:
    """Let a made-up message speak of what exists, mostly: otherwise its first field would be all that is read."""
    for field in fields(message):
        value = getattr(message, field.name)
        if source.random() < 0.1:
            continue
        if is_dataclass(value):
            _align(source, value)
        elif isinstance(value, list) and value and is_dataclass(value[0]):
            for part in value:
                _align(source, part)
        else:
            aligned = _aligned_value(source, field.name, value)
            if aligned is not None:
                setattr(message, field.name, aligned)


def _aligned_value(source: random.Random, name: str, value: Any) -> Any:
    match name:
        case "topic_id":
            return source.choice(_TOPIC_IDS)
        case "id" if isinstance(value, bytes):
            return source.choice(_ACL_IDS)
        case "broker_id" | "id" | "leader" | "leader_id" | "broker_epoch" | "epoch":
            return source.choice(_BROKERS)
        case "replicas" | "isr" | "removing_replicas" | "adding_replicas" | "eligible_leader_replicas" | "broker_ids":
            return source.sample(_BROKERS, source.randrange(4))
        case "partition_id" | "partition_index" | "leader_epoch" | "partition_epoch":
            return source.randrange(3)
        case "directories" if value is None or (value and isinstance(value[0], bytes)):
            return [source.randbytes(16) for _ in range(source.choice((0, 3)))]
        case "resource_type" | "resource_type_filter":
            return source.choice((2, 2, 3, 4, 16, 32, 99))
        case "topic_name" | "resource_name" | "topic" if value is None or isinstance(value, str):
            return source.choice(_NAMES)
        case "key":
            return source.choice(_QUOTA_KEYS)
        case "value" if isinstance(value, float):
            return source.choice((0.0, -1.0, 5e-324, 1.0, 1e308, float("inf"), float("nan")))
        case "entity_type":
            return source.choice(("user", "client-id", "ip"))
        case "name" if isinstance(value, str):
            return source.choice((*_NAMES, *_TOPIC_CONFIGS))
        case _:
            return None


# --- requests --------------------------------------------------------------------------------------------------------

CONTROLLER_APIS = (19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 56, 57, 62, 63, 64, 67, 70, 73)
"""What `Controller.decide` decides."""


def make_request(source: random.Random) -> bytes:
    """A request of the controller API about what mostly exists: key, version, body."""
    api = APIS[source.choice(CONTROLLER_APIS)]
    version = source.randint(*api.versions)
    request = MessageMaker(source.getrandbits(64)).message(api.request, version)
    _align(source, request)
    return struct.pack(">hh", api.key, version) + encode(request, version)


def harm_request(source: random.Random, data: bytes) -> bytes:
    """Harm the body; key and version stay."""
    return data[:4] + changed(source, b"\0\0" + data[4:])[2:]


def decide_request(data: bytes) -> None:
    """Decide a request; its records must be encodable, and must not contradict the state that decided them."""
    key, version = struct.unpack_from(">hh", data)
    request, _ = decode(APIS[key].request, version, data, 4)
    controller = _make_controller(IMAGE)
    decision = controller.decide(request, version, next_offset=101, now_ms=NOW_MS, wall_ms=NOW_MS)
    encode(decision.response, version)
    try:
        controller.replay([decode_record(encode_record(record)) for record in decision.records], 101, 1)
    except RECORD_REFUSALS as error:
        raise AssertionError(f"a decision contradicts its own state: {error!r}") from error
    controller.image.check()


def _make_controller(image: MetadataImage) -> Controller:
    config = ControllerConfig(node_id=1, cluster_id="fuzzed")
    controller = Controller(config, CatalogValidator(), random.Random(1))
    controller.take_over(image, NOW_MS)
    return controller
