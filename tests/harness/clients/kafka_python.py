"""kafka-python."""

import socket
import time
import weakref
from typing import Self

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.codec import has_snappy
from kafka.errors import KafkaError
from kafka.net import KafkaNetSocket

from harness.clients.face import PATIENCE_S, Delivery, Row

_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()
_make_socket = KafkaNetSocket.socket


def _recorded(self: KafkaNetSocket, *args: int) -> socket.socket:
    made = _make_socket(self, *args)
    _sockets.add(made)
    return made


KafkaNetSocket.socket = _recorded


def _forget_sockets() -> None:
    """Close the sockets of failed connections, which this client leaves to the garbage collector."""
    for made in list(_sockets):
        try:
            made.getpeername()
        except OSError:
            made.close()


class PythonProducer:
    def __init__(self, bootstrap: str, codec: str, acks: str, idempotent: bool) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            max_request_size=5_000_000,
            linger_ms=2,
            retry_backoff_ms=20,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            delivery_timeout_ms=int(PATIENCE_S * 1000),
            request_timeout_ms=20_000,
            retries=1_000_000,
        )
        self._futures: list = []

    def send(self, topic, value, *, key=None, partition=None, timestamp=None, headers=()) -> None:
        sent = self._producer.send(topic, value, key, list(headers), partition, timestamp)
        self._futures.append(sent)

    def flush(self) -> list[Delivery]:
        futures, self._futures = self._futures, []
        fates = []
        for future in futures:
            try:
                metadata = future.get(PATIENCE_S)
            except KafkaError as error:
                fates.append(Delivery(-1, -1, getattr(error, "errno", -1)))
            else:
                fates.append(Delivery(metadata.partition, metadata.offset))
        return fates

    def close(self) -> None:
        self._producer.close(PATIENCE_S)
        _forget_sockets()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class KafkaPython:
    name = "kafka-python"
    codecs = ("none", "gzip", "lz4", "zstd", *(("snappy",) if has_snappy() else ()))

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
        )

    def close(self) -> None:
        self._consumer.close()
        self._admin.close()
        _forget_sockets()

    def producer(self, *, codec="none", acks="all", idempotent=False) -> PythonProducer:
        return PythonProducer(self._bootstrap, codec, acks, idempotent)

    def read(self, topic, count, *, partition=0, offset=0) -> list[Row]:
        where = TopicPartition(topic, partition)
        self._consumer.assign([where])
        self._consumer.seek(where, offset)
        records: list[Row] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(records) < count and time.monotonic() < deadline:
            for record in self._consumer.poll(1000, max_records=count - len(records)).get(where, ()):
                row = Row(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
                records.append(row._replace(log_append_time=record.timestamp_type == 1))
        return records

    def beginning(self, topic, partition=0) -> int:
        where = TopicPartition(topic, partition)
        return self._consumer.beginning_offsets([where])[where]

    def end(self, topic, partition=0) -> int:
        where = TopicPartition(topic, partition)
        return self._consumer.end_offsets([where])[where]

    def offset_at(self, topic, timestamp, partition=0) -> int | None:
        where = TopicPartition(topic, partition)
        match = self._consumer.offsets_for_times({where: timestamp})[where]
        return None if match is None or match.offset < 0 else match.offset

    def create_topic(self, topic, partitions=1, configs=None) -> None:
        options = {"num_partitions": partitions, "replication_factor": 1, "configs": configs or {}}
        self._admin.create_topics({topic: options})

    def delete_topic(self, topic) -> None:
        self._admin.delete_topics([topic])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def add_partitions(self, topic, total) -> None:
        self._admin.create_partitions({topic: total})

    def partition_count(self, topic) -> int:
        [description] = self._admin.describe_topics([topic])
        return len(description["partitions"])

    def topic_settings(self, topic) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        descriptions = self._admin.describe_configs([resource], config_filter="all")
        entries = descriptions["topic"][topic] if isinstance(descriptions, dict) else descriptions[0]
        return {name: entry["value"] for name, entry in entries.items()}

    def set_topic_settings(self, topic, configs) -> None:
        self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs)])

    def delete_records(self, topic, before, partition=0) -> None:
        self._admin.delete_records({TopicPartition(topic, partition): before})
