"""librdkafka, through confluent-kafka."""

import time
from typing import Self

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from harness.clients.face import PATIENCE_S, Delivery, Row

_QUIET = {"log_level": 2, "socket.timeout.ms": 20_000}


class ConfluentProducer:
    def __init__(self, bootstrap: str, codec: str, acks: str, idempotent: bool) -> None:
        settings = {
            **_QUIET,
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "acks": acks,
            "linger.ms": 2,
            "message.max.bytes": 5_000_000,
            "delivery.timeout.ms": int(PATIENCE_S * 1000),
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
        }
        if idempotent:
            settings["enable.idempotence"] = True
        self._producer = Producer(settings)
        self._fates: dict[int, Delivery] = {}
        self._sent = 0

    def send(self, topic, value, *, key=None, partition=None, timestamp=None, headers=()) -> None:
        number, self._sent = self._sent, self._sent + 1

        def on_delivery(error, message) -> None:
            code = error.code() if error is not None else 0
            offset = message.offset() if not code and message.offset() is not None else -1
            self._fates[number] = Delivery(message.partition(), offset, code)

        extra = {} if partition is None else {"partition": partition}
        if timestamp is not None:
            extra["timestamp"] = timestamp
        try:
            self._producer.produce(topic, value, key, headers=list(headers), on_delivery=on_delivery, **extra)
        except KafkaException as error:
            self._fates[number] = Delivery(-1, -1, error.args[0].code())
        self._producer.poll(0)

    def flush(self) -> list[Delivery]:
        left = self._producer.flush(PATIENCE_S)
        assert left == 0, f"{left} records were not delivered"
        fates = [self._fates[number] for number in range(self._sent)]
        self._fates.clear()
        self._sent = 0
        return fates

    def close(self) -> None:
        self._producer.flush(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Confluent:
    name = "confluent-kafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({**_QUIET, "bootstrap.servers": bootstrap})
        self._consumer = Consumer(
            {
                **_QUIET,
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": False,
                "fetch.wait.max.ms": 100,
                "check.crcs": True,
                "auto.offset.reset": "error",
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def producer(self, *, codec="none", acks="all", idempotent=False) -> ConfluentProducer:
        return ConfluentProducer(self._bootstrap, codec, acks, idempotent)

    def read(self, topic, count, *, partition=0, offset=0) -> list[Row]:
        self._consumer.assign([TopicPartition(topic, partition, offset)])
        records: list[Row] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(records) < count and time.monotonic() < deadline:
            for message in self._consumer.consume(count - len(records), 1.0):
                if message.error() is not None:
                    raise KafkaException(message.error())
                kind, timestamp = message.timestamp()
                headers = tuple((name, value) for name, value in message.headers() or ())
                stamped = kind == TIMESTAMP_LOG_APPEND_TIME
                records.append(Row(message.offset(), timestamp, message.key(), message.value(), headers, stamped))
        self._consumer.unassign()
        return records

    def beginning(self, topic, partition=0) -> int:
        return self._consumer.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_S)[0]

    def end(self, topic, partition=0) -> int:
        return self._consumer.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_S)[1]

    def offset_at(self, topic, timestamp, partition=0) -> int | None:
        [match] = self._consumer.offsets_for_times([TopicPartition(topic, partition, timestamp)], PATIENCE_S)
        return match.offset if match.offset >= 0 else None

    def create_topic(self, topic, partitions=1, configs=None) -> None:
        new = NewTopic(topic, partitions, 1, config=configs or {})
        self._admin.create_topics([new])[topic].result(PATIENCE_S)

    def delete_topic(self, topic) -> None:
        self._admin.delete_topics([topic])[topic].result(PATIENCE_S)

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=PATIENCE_S).topics)

    def add_partitions(self, topic, total) -> None:
        self._admin.create_partitions([NewPartitions(topic, total)])[topic].result(PATIENCE_S)

    def partition_count(self, topic) -> int:
        return len(self._admin.list_topics(topic, PATIENCE_S).topics[topic].partitions)

    def topic_settings(self, topic) -> dict[str, str | None]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        [future] = self._admin.describe_configs([resource]).values()
        return {name: entry.value for name, entry in future.result(PATIENCE_S).items()}

    def set_topic_settings(self, topic, configs) -> None:
        changes = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in configs.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
        [future] = self._admin.incremental_alter_configs([resource]).values()
        future.result(PATIENCE_S)

    def delete_records(self, topic, before, partition=0) -> None:
        [future] = self._admin.delete_records([TopicPartition(topic, partition, before)]).values()
        future.result(PATIENCE_S)
