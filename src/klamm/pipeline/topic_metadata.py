"""What the driver asks a cluster before and between batches: which partitions there are, and where they begin and end.

One connection for the life of a query; blocking, over the client's thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from klamm.client.admin import AsyncAdmin
from klamm.client.config import ADMIN_CONFIGS
from klamm.client.errors import KafkaError, error_for
from klamm.client.loop_thread import BlockingFace
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_UUID, TopicPartition, uuid_to_str
from klamm.pipeline.core.connector_options import EARLIEST, LATEST, ReadBound, TopicSelection
from klamm.pipeline.core.offsets import Offsets, Position, find_late_partitions, split_lookups
from klamm.telemetry.log import get_logger

_log = get_logger("pipeline")


class TopicLookup(BlockingFace):
    """A look at the topics of one read."""

    def __init__(self, client: Mapping[str, str], choice: TopicSelection) -> None:
        self._choice = choice
        self._isolation = client.get("isolation.level", "read_committed")
        settings = {name: value for name, value in client.items() if name in ADMIN_CONFIGS}
        self._admin = AsyncAdmin(settings)
        super().__init__(self._admin, "view of the topics")

    def partitions(self, *, missing_ok: bool = False) -> tuple[list[TopicPartition], dict[str, str]]:
        """The partitions to read now, and the ids of their topics; a topic that is not there is refused."""
        return self._run(self._partitions(missing_ok))

    async def _partitions(self, missing_ok: bool) -> tuple[list[TopicPartition], dict[str, str]]:
        choice = self._choice
        cluster = self._admin.cluster
        cluster.all_topics = choice.pattern is not None
        names = set(choice.topics) | {partition.topic for partition in choice.partitions}
        await cluster.retrying(lambda: cluster.refresh(names), cluster.settings.seconds("default.api.timeout.ms"))
        table = cluster.table
        if choice.pattern is not None:
            matches = re.compile(choice.pattern)
            names = {name for name, topic in table.topics.items() if not topic.internal and matches.fullmatch(name)}
        places: list[TopicPartition] = []
        ids: dict[str, str] = {}
        for name in sorted(names):
            topic = table.topics.get(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
            if topic is None or code:
                gone = code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
                if gone and missing_ok:
                    continue
                raise error_for(code, f"topic {name} cannot be read")
            if topic.topic_id != ZERO_UUID:
                ids[name] = uuid_to_str(topic.topic_id)
            places.extend(TopicPartition(name, partition) for partition in topic.partitions)
        if choice.partitions:
            there = set(places)
            absent = [str(partition) for partition in choice.partitions if partition not in there]
            if absent and not missing_ok:
                raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"assign names {', '.join(absent)}")
            places = [partition for partition in choice.partitions if partition in there]
        return places, ids

    def ends(self, *, missing_ok: bool = False) -> Position:
        """Where everything ends now."""
        places, ids = self.partitions(missing_ok=missing_ok)
        return Position(self.lookup(dict.fromkeys(places, LATEST)), ids)

    def earliest(self, places: Offsets) -> dict[TopicPartition, int]:
        """Where partitions begin."""
        return self.lookup(dict.fromkeys(places, EARLIEST))

    def at(self, moment: ReadBound, what: str, *, late_is_latest: bool) -> Position:
        """Where everything stands at a moment; `what` is the option that said it."""
        places, ids = self.partitions()
        known, asked = split_lookups(moment, places, what)
        found = self.lookup(asked)
        if moment.timed:
            late = find_late_partitions(found, what, latest=late_is_latest)
            found |= self.lookup(dict.fromkeys(late, LATEST))
        return Position({**known, **found}, ids)

    def lookup(self, wanted: Offsets) -> dict[TopicPartition, int]:
        """Offsets at times, EARLIEST or LATEST."""
        if not wanted:
            return {}
        found = self._run(self._admin.list_offsets(wanted, isolation=self._isolation))
        return {where: each.offset for where, each in found.items()}

    def show_progress(self, group_id: str, offsets: Offsets) -> None:
        """Commit to a group for everybody to see; nobody reads it back, so a failure is only worth a line."""
        try:
            self._run(self._admin.alter_group_offsets(group_id, offsets))
        except KafkaError as error:
            _log.warning("progress was not committed", group=group_id, reason=str(error))
