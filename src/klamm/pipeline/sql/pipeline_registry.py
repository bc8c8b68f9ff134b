"""The pipelines of a cluster: which folder has a pipeline's checkpoints, and which process runs it.

Identities are records of the compacted topic `__klamm_pipelines`, by name, written in transactions of one id: of two
starts at the same moment the later one fences the earlier one, which then reads what the other has written. A lease is
the metadata of an offset of the group `klamm-pipeline-<id>`, written in transactions of an id of the same name: a newer
run fences an older one.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from klamm.client import Admin, Consumer, Producer
from klamm.client.admin.offset_types import OffsetSpec
from klamm.client.config import ADMIN_CONFIGS, CONSUMER_CONFIGS, PRODUCER_CONFIGS
from klamm.client.errors import KafkaError, ProducerFencedError, TopicAlreadyExistsError
from klamm.client.types import OffsetAndMetadata
from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.pipeline_record import HEARTBEAT_S, PipelineLease, PipelineRecord, related_records

_log = logging.getLogger(__name__)
TOPIC: Final = "__klamm_pipelines"
_PARTITION: Final = TopicPartition(TOPIC, 0)
_READ_TIMEOUT_S: Final = 30.0
_WRITER: Final = "klamm-pipeline-records"
"""The transactional id of every writer of records."""
_WRITE_ATTEMPTS: Final = 20
_WRITE_PAUSE_S: Final = 0.05
_WRITE_PAUSE_MAX_S: Final = 2.0
_WRITE_TIMEOUT_MS: Final = 10_000
"""A writer that dies holds up readers of committed records for so long."""


class PipelineRegistry:
    """The pipelines that a cluster has a record of."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._client = client
        self.host = socket.gethostname()

    def settings(self, definition: Any, **more: str) -> dict[str, Any]:
        """Return the settings of a client of this cluster; `definition` are those that this kind of client has."""
        settings = {name: value for name, value in self._client.items() if name in definition and name != "group.id"}
        return {**settings, **{name.replace("_", "."): value for name, value in more.items()}}

    def _admin(self) -> Admin:
        return Admin(self.settings(ADMIN_CONFIGS))

    def ensure(self) -> None:
        """Create the topic if it does not exist."""
        with self._admin() as admin:
            if not _has_topic(admin):
                with suppress(TopicAlreadyExistsError):
                    admin.create_topic(TOPIC, 1, configs={"cleanup.policy": "compact"})

    def read(self, name: str) -> PipelineRecord | None:
        """Return the record of a pipeline."""
        return self.read_all(name).get(name)

    def read_all(self, name: str) -> dict[str, PipelineRecord]:
        """Return the records of all pipelines; ConfigError when that of the pipeline `name` cannot be read."""
        with self._admin() as admin:
            # Of a topic that does not exist the offsets would be awaited.
            if not _has_topic(admin):
                return {}
            ends = admin.list_offsets({_PARTITION: OffsetSpec.LATEST}, isolation="read_committed")
        settings = self.settings(
            CONSUMER_CONFIGS, auto_offset_reset="earliest", enable_auto_commit="false", isolation_level="read_committed"
        )
        values: dict[str, bytes | None] = {}
        deadline = time.monotonic() + _READ_TIMEOUT_S
        with Consumer(settings) as consumer:
            consumer.assign([_PARTITION])
            # Records are few: one for each change of a pipeline's identity, until they are compacted.
            while consumer.position(_PARTITION) < ends[_PARTITION].offset:
                if time.monotonic() > deadline:
                    raise ConfigError(f"{TOPIC} could not be read within {_READ_TIMEOUT_S:.0f} s")
                for record in consumer.poll(1.0):
                    values[(record.key or b"").decode(errors="replace")] = record.value
        records = {}
        for known, value in values.items():
            try:
                if value is not None:
                    records[known] = PipelineRecord.decode(value, TOPIC)
            except ConfigError as error:
                if known == name:
                    raise
                # A newer version may have written it; it must not stop the pipelines of this one.
                _log.warning("pipeline record skipped pipeline=%s: %s", known, error)
        return records

    def keep(
        self,
        identity: QueryIdentity,
        folder: str,
        outputs: Mapping[str, str] | None = None,
        seen: Mapping[str, PipelineRecord] | None = None,
    ) -> None:
        """Record a pipeline's identity, folder and outputs; records of older names are removed.

        ConfigError when a record on which the start depends is no longer as it was `seen`: another start was faster.
        """
        record = PipelineRecord(identity, self.host, folder, outputs or {})
        settings = self.settings(
            PRODUCER_CONFIGS, transactional_id=_WRITER, transaction_timeout_ms=str(_WRITE_TIMEOUT_MS)
        )
        for attempt in range(1, _WRITE_ATTEMPTS + 1):
            try:
                with Producer(settings) as producer:
                    # Ends the transaction of a start that was faster, so that its record can be read.
                    producer.init_transactions()
                    self._keep(producer, record, seen)
            except ProducerFencedError:  # another start was between: decide again by what it has written
                if attempt == _WRITE_ATTEMPTS:
                    raise ConfigError(
                        f"{identity.name} could not be recorded in {TOPIC}, since other pipelines are started at the "
                        "same time; start it again"
                    ) from None
                # Random: two starts that try again at once would fence each other for ever.
                time.sleep(random.uniform(0, min(_WRITE_PAUSE_S * 2**attempt, _WRITE_PAUSE_MAX_S)))  # noqa: S311
            else:
                return

    def _keep(self, producer: Producer, record: PipelineRecord, seen: Mapping[str, PipelineRecord] | None) -> None:
        identity = record.identity
        records = related_records(self.read_all(identity.name), identity, record.places.values())
        for name, newest in records.items():
            if seen is not None and seen.get(name) != newest:
                raise ConfigError(
                    f"{identity.name} was started at the same time, as {name} in {newest.place}: this start was refused"
                )
        producer.begin_transaction()
        producer.send(TOPIC, record.encode(), key=identity.name.encode(), partition=0)
        for name, newest in records.items():
            if name != identity.name and newest.identity.id == identity.id:
                producer.send(TOPIC, None, key=name.encode(), partition=0)
        producer.commit_transaction()

    def lease(self, identity: QueryIdentity) -> PipelineLease | None:
        """Return the newest run of a pipeline."""
        group = lease_group(identity.id)
        with self._admin() as admin:
            committed = admin.list_group_offsets(group, [_PARTITION]).get(_PARTITION)
        return None if committed is None else PipelineLease.decode(committed.metadata)

    def check_lease(self, identity: QueryIdentity, folder: str) -> None:
        """Raise ConfigError while a run of another folder or machine is alive."""
        lease = self.lease(identity)
        if lease is not None and lease.blocks(self.host, folder, _now_ms()):
            raise ConfigError(
                f"{identity.name} runs already, process {lease.pid} on {lease.host} in {lease.folder}; "
                f"this one is on {self.host} in {folder}"
            )

    @contextmanager
    def running(self, identity: QueryIdentity, folder: str, fenced: Callable[[str], None]) -> Iterator[str]:
        """Hold the lease of a pipeline, and return the id of the run; ConfigError while another folder's run is alive.

        `fenced` is called with the reason when a newer run takes the lease.
        """
        self.check_lease(identity, folder)
        own = PipelineLease(uuid.uuid4().hex, self.host, os.getpid(), folder, _now_ms())
        settings = self.settings(
            PRODUCER_CONFIGS, transactional_id=lease_group(identity.id), transaction_timeout_ms="60000"
        )
        with Producer(settings) as producer:
            producer.init_transactions()
            _write(producer, identity, own)
            ended = threading.Event()
            beats = threading.Thread(
                target=_beat, args=(producer, identity, own, ended, fenced), name="pipeline-lease", daemon=True
            )
            beats.start()
            try:
                yield own.run
            finally:
                ended.set()
                beats.join()
                # Released, so that another folder's run need not wait until the heartbeat is old.
                with suppress(KafkaError):
                    _write(producer, identity, PipelineLease(own.run, own.host, own.pid, own.folder, 0))


def lease_group(pipeline: str) -> str:
    """Return the group whose offset has the lease of the pipeline with this id."""
    return f"klamm-pipeline-{pipeline}"


def _has_topic(admin: Admin) -> bool:
    return TOPIC in {topic.name for topic in admin.list_topics(internal=True)}


def _write(producer: Producer, identity: QueryIdentity, lease: PipelineLease) -> None:
    producer.begin_transaction()
    try:
        producer.send_offsets_to_transaction(
            {_PARTITION: OffsetAndMetadata(0, lease.encode())}, lease_group(identity.id)
        )
        producer.commit_transaction()
    except ProducerFencedError:
        raise
    except KafkaError:
        with suppress(KafkaError):
            producer.abort_transaction()
        raise


def _beat(
    producer: Producer,
    identity: QueryIdentity,
    own: PipelineLease,
    ended: threading.Event,
    fenced: Callable[[str], None],
) -> None:
    while not ended.wait(HEARTBEAT_S):
        try:
            _write(producer, identity, PipelineLease(own.run, own.host, own.pid, own.folder, _now_ms()))
        except ProducerFencedError:
            fenced(f"{identity.name} was started elsewhere: this run was fenced")
            return
        except KafkaError as error:  # brokers may be away for a while; queries wait for them as well
            _log.warning("pipeline lease not renewed pipeline=%s: %s", identity.name, error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
