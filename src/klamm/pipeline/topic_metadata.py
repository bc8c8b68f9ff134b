"""Looks up partitions and their offsets for the driver, before and between batches.

One connection for the life of a query; calls block, over the client's thread.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.config import ADMIN_CONFIGS
from klamm.client.errors import KafkaError, error_for
from klamm.client.loop_thread import BlockingClient
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_UUID, TopicPartition, uuid_to_str
from klamm.pipeline.core.connector_options import EARLIEST, LATEST, ReadBound, TopicSelection
from klamm.pipeline.core.offsets import Offsets, Position, find_late_partitions, split_lookups

_log = logging.getLogger(__name__)


class TopicLookup(BlockingClient):
    """Partitions and offsets of the topics that one read selects."""

    def __init__(self, client: Mapping[str, str], choice: TopicSelection) -> None:
        self._choice = choice
        self._isolation = client.get("isolation.level", "read_committed")
        settings = {name: value for name, value in client.items() if name in ADMIN_CONFIGS}
        self._admin = AsyncAdmin(settings)
        super().__init__(self._admin, "topic lookup")

    def partitions(self, *, missing_ok: bool = False) -> tuple[list[TopicPartition], dict[str, str]]:
        """Return the partitions to read, and the ids of their topics; a topic that does not exist is an error."""
        return self._run(self._partitions(missing_ok))

    async def _partitions(self, missing_ok: bool) -> tuple[list[TopicPartition], dict[str, str]]:
        choice = self._choice
        cluster = self._admin.cluster
        # A pattern needs the metadata of all topics; otherwise only of those that are named.
        cluster.all_topics = choice.pattern is not None
        names = set(choice.topics) | {partition.topic for partition in choice.partitions}
        refresh = functools.partial(cluster.refresh, names)
        await cluster.retrying(refresh, cluster.settings.seconds("default.api.timeout.ms"))
        metadata = cluster.table
        if choice.pattern is not None:
            # Whole names, without internal topics, as Kafka's subscribe(Pattern).
            matches = re.compile(choice.pattern)
            names = {name for name, topic in metadata.topics.items() if not topic.internal and matches.fullmatch(name)}
        partitions: list[TopicPartition] = []
        ids: dict[str, str] = {}
        for name in sorted(names):
            topic = metadata.topics.get(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
            if topic is None or code:
                unknown = code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
                if unknown and missing_ok:
                    continue
                raise error_for(code, f"topic {name} cannot be read")
            # Brokers before KIP-516 have no topic ids: then a recreated topic is not noticed.
            if topic.topic_id != ZERO_UUID:
                ids[name] = uuid_to_str(topic.topic_id)
            partitions.extend(TopicPartition(name, partition) for partition in topic.partitions)
        if choice.partitions:
            existing = set(partitions)
            absent = [str(partition) for partition in choice.partitions if partition not in existing]
            if absent and not missing_ok:
                raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"assign names {', '.join(absent)}")
            partitions = [partition for partition in choice.partitions if partition in existing]
        return partitions, ids

    def ends(self, *, missing_ok: bool = False) -> Position:
        """Return the end offsets."""
        partitions, ids = self.partitions(missing_ok=missing_ok)
        return Position(self.lookup(dict.fromkeys(partitions, LATEST)), ids)

    def earliest(self, partitions: Offsets) -> dict[TopicPartition, int]:
        """Return the log start offsets of partitions."""
        return self.lookup(dict.fromkeys(partitions, EARLIEST))

    def at(self, bound: ReadBound, what: str, *, late_is_latest: bool) -> Position:
        """Return the offsets of a read's bound; `what` is the option that gave it, for error messages."""
        partitions, ids = self.partitions()
        known, queries = split_lookups(bound, partitions, what)
        offsets = self.lookup(queries)
        # A broker answers -1 for a timestamp after the last record.
        if bound.timed:
            late = find_late_partitions(offsets, what, latest=late_is_latest)
            offsets |= self.lookup(dict.fromkeys(late, LATEST))
        return Position({**known, **offsets}, ids)

    def lookup(self, wanted: Offsets) -> dict[TopicPartition, int]:
        """Return the offsets of timestamps, of EARLIEST or of LATEST."""
        if not wanted:
            return {}
        # With read_committed LATEST is the last stable offset, so a batch never waits for an open transaction.
        answers = self._run(self._admin.list_offsets(wanted, isolation=self._isolation))
        return {partition: answer.offset for partition, answer in answers.items()}

    def commit_progress(self, group_id: str, offsets: Offsets) -> None:
        """Commit offsets to a group, for lag monitors; the checkpoint is the position, so errors are only logged."""
        try:
            self._run(self._admin.alter_group_offsets(group_id, offsets))
        except KafkaError as error:
            _log.warning("offsets were not committed group=%s: %s", group_id, error)
