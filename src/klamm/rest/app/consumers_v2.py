"""Routes of v2 about consumer instances."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final
from urllib.parse import quote

from klamm.client.consumer.core.subscription import Mode
from klamm.client.errors import IllegalStateError, SomeFailed, UnknownTopicOrPartitionError
from klamm.client.types import Record
from klamm.http.media_types import choose_content_type
from klamm.http.messages import Answered, HttpResponse, json_response
from klamm.http.refusals import HttpRefusal
from klamm.http.router import PathRouter
from klamm.model.ids import TopicPartition
from klamm.rest.app.addresses import RequestAddress
from klamm.rest.app.requests import RestRequest
from klamm.rest.core.consumer_requests import (
    parse_commit,
    parse_instance,
    parse_partitions,
    parse_seek,
    parse_subscription,
)
from klamm.rest.core.embedded import print_plain
from klamm.rest.core.fields import dump_json, parse_object
from klamm.rest.core.media_types import ANSWERED_RECORDS, format_of
from klamm.rest.core.refusals import bad_request, format_mismatch, illegal_state, partition_not_found, topic_not_found
from klamm.rest.instances import ConsumerInstance
from klamm.rest.openapi import V2
from klamm.rest.schemas import RecordSchemas
from klamm.rest.service import RestService

_NO_CONTENT: Final = 204
_MODES: Final = "Subscription to topics, partitions and pattern are mutually exclusive: delete the subscription first"
_GROUP_LENGTH_MAX: Final = 249


class ConsumerRoutes:
    """Consumer instances."""

    def __init__(self, service: RestService, address: RequestAddress) -> None:
        self._service = service
        self._instances = service.instances
        self._address = address

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        instance = "/consumers/{group}/instances/{instance}"
        router.add("POST", "/consumers/{group}", self.create, tag=V2)
        router.add("DELETE", instance, self.delete, tag=V2)
        router.add("POST", f"{instance}/subscription", self.subscribe, tag=V2)
        router.add("GET", f"{instance}/subscription", self.get_subscription, tag=V2)
        router.add("DELETE", f"{instance}/subscription", self.unsubscribe, tag=V2)
        router.add("POST", f"{instance}/assignments", self.assign, tag=V2)
        router.add("GET", f"{instance}/assignments", self.get_assignments, tag=V2)
        router.add("POST", f"{instance}/offsets", self.commit, tag=V2)
        router.add("GET", f"{instance}/offsets", self.get_committed, tag=V2)
        router.add("POST", f"{instance}/positions", self.seek, tag=V2)
        router.add("POST", f"{instance}/positions/beginning", self.seek_to_beginning, tag=V2)
        router.add("POST", f"{instance}/positions/end", self.seek_to_end, tag=V2)
        # A stream, as a read may wait longer than other requests, and ends when the client disconnects.
        router.add("GET", f"{instance}/records", self.read, streams=True, tag=V2)

    @contextlib.asynccontextmanager
    async def _use(self, request: RestRequest) -> AsyncIterator[ConsumerInstance]:
        values = request.values
        try:
            async with self._instances.use(values["group"], values["instance"], str(request.principal)) as instance:
                yield instance
        except IllegalStateError as error:
            raise illegal_state(str(error)) from None
        except UnknownTopicOrPartitionError:
            # 40403, which v3 answers, would say that the instance is gone.
            raise topic_not_found() from None
        except SomeFailed as error:
            if any(isinstance(failure, UnknownTopicOrPartitionError) for failure in error.failures.values()):
                raise topic_not_found() from None
            raise

    async def create(self, request: RestRequest) -> HttpResponse:
        """POST /consumers/{group}: a new instance."""
        group = request.values["group"]
        if not group or len(group) > _GROUP_LENGTH_MAX:
            raise bad_request(f"a group has a name of 1 to {_GROUP_LENGTH_MAX} characters")
        settings = parse_instance(parse_object(request.body))
        if settings.embedded.needs_schema:
            request.clients.schemas.require()
        entry = await self._instances.create(group, str(request.principal), settings, request.clients.settings.consumer)
        path = f"/consumers/{quote(group, safe='')}/instances/{quote(entry.name, safe='')}"
        return json_response({"instance_id": entry.name, "base_uri": self._address.root(request) + path})

    async def delete(self, request: RestRequest) -> HttpResponse:
        """DELETE .../instances/{instance}."""
        await self._instances.delete(request.values["group"], request.values["instance"], str(request.principal))
        return HttpResponse(_NO_CONTENT)

    async def subscribe(self, request: RestRequest) -> HttpResponse:
        """POST .../subscription: topics, or a pattern."""
        topics = parse_subscription(parse_object(request.body))
        async with self._use(request) as instance:
            mode = instance.consumer.subscription_state.mode
            wanted = Mode.TOPICS if isinstance(topics, list) else Mode.PATTERN
            if mode not in (Mode.NONE, wanted):
                raise illegal_state(_MODES)
            instance.consumer.subscribe(topics)
        return HttpResponse(_NO_CONTENT)

    async def get_subscription(self, request: RestRequest) -> HttpResponse:
        """GET .../subscription."""
        async with self._use(request) as instance:
            return json_response({"topics": sorted(instance.consumer.subscription())})

    async def unsubscribe(self, request: RestRequest) -> HttpResponse:
        """DELETE .../subscription."""
        async with self._use(request) as instance:
            await instance.consumer.unsubscribe()
        return HttpResponse(_NO_CONTENT)

    async def assign(self, request: RestRequest) -> HttpResponse:
        """POST .../assignments: partitions without a group's rebalances."""
        partitions = parse_partitions(parse_object(request.body))
        async with self._use(request) as instance:
            if instance.consumer.subscription_state.mode not in (Mode.NONE, Mode.PARTITIONS):
                raise illegal_state(_MODES)
            instance.consumer.assign(partitions)
        return HttpResponse(_NO_CONTENT)

    async def get_assignments(self, request: RestRequest) -> HttpResponse:
        """GET .../assignments."""
        async with self._use(request) as instance:
            partitions = sorted(instance.consumer.assignment())
        return json_response({"partitions": [{"topic": topic, "partition": index} for topic, index in partitions]})

    async def commit(self, request: RestRequest) -> HttpResponse:
        """POST .../offsets: the offsets of the body, or everything that was read."""
        offsets = parse_commit(parse_object(request.body))
        async with self._use(request) as instance:
            await _check_partitions(request, instance.list_positioned() if offsets is None else offsets)
            await instance.consumer.commit(offsets)
        return HttpResponse(_NO_CONTENT)

    async def get_committed(self, request: RestRequest) -> HttpResponse:
        """GET .../offsets with a body: committed offsets; partitions without one are left out."""
        partitions = parse_partitions(parse_object(request.body))
        async with self._use(request) as instance:
            committed = await instance.consumer.committed(partitions)
        return json_response(
            {
                "offsets": [
                    {"topic": topic, "partition": index, "offset": position.offset, "metadata": position.metadata}
                    for (topic, index), position in committed.items()
                    if position is not None
                ]
            }
        )

    async def seek(self, request: RestRequest) -> HttpResponse:
        """POST .../positions: by offset, or by time."""
        offsets, timestamps = parse_seek(parse_object(request.body))
        async with self._use(request) as instance:
            instance.require_assigned([*offsets, *timestamps])
            if timestamps:
                await _check_partitions(request, timestamps)
                for partition, position in (await instance.consumer.offsets_for_times(timestamps)).items():
                    if position is None:  # no record is that young
                        instance.consumer.seek_to_end(partition)
                    else:
                        instance.consumer.seek(partition, position.offset)
            for partition, offset in offsets.items():
                instance.consumer.seek(partition, offset)
        return HttpResponse(_NO_CONTENT)

    async def seek_to_beginning(self, request: RestRequest) -> HttpResponse:
        """POST .../positions/beginning."""
        partitions = parse_partitions(parse_object(request.body))
        async with self._use(request) as instance:
            instance.require_assigned(partitions)
            if partitions:  # without any, the consumer would take all that it has
                instance.consumer.seek_to_beginning(*partitions)
        return HttpResponse(_NO_CONTENT)

    async def seek_to_end(self, request: RestRequest) -> HttpResponse:
        """POST .../positions/end."""
        partitions = parse_partitions(parse_object(request.body))
        async with self._use(request) as instance:
            instance.require_assigned(partitions)
            if partitions:
                instance.consumer.seek_to_end(*partitions)
        return HttpResponse(_NO_CONTENT)

    async def read(self, request: RestRequest) -> HttpResponse:
        """GET .../records: what was written since the last read, within a time and a number of bytes."""
        assert request.stream is not None
        await request.stream.read(self._service.config.body_bytes_max)  # a body means nothing here
        accepted = format_of(choose_content_type(request.headers, ANSWERED_RECORDS))
        config = self._service.config
        timeout_ms = _positive(request, "timeout", None)
        max_bytes = min(_positive(request, "max_bytes", config.response_bytes_max), config.response_bytes_max)
        async with self._use(request) as instance:
            # A client that takes any JSON gets the format of the instance.
            if accepted not in (None, instance.embedded):
                raise format_mismatch()
            if timeout_ms is None:
                timeout_ms = config.request_timeout_ms
                if instance.request_timeout_ms is not None:
                    timeout_ms = instance.request_timeout_ms
            reading = asyncio.create_task(instance.read(timeout_ms / 1000, max_bytes))
            leaving = asyncio.create_task(request.stream.wait_disconnect())
            try:
                await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    raise Answered(HttpResponse(_NO_CONTENT))
                records = reading.result()
            finally:
                reading.cancel()
                leaving.cancel()
                await asyncio.gather(reading, leaving, return_exceptions=True)
            body = await self._print(instance, records, request.clients.schemas)
        return HttpResponse(body=body, content_type=instance.embedded.media_type)

    async def _print(
        self, instance: ConsumerInstance, records: list[Record[Any, Any]], schemas: RecordSchemas
    ) -> bytes:
        """Return the JSON of records up to the first that is not of the format, which the next read begins with."""
        lines: list[str] = []
        topics: dict[str, str] = {}
        embedded = instance.embedded
        for index, record in enumerate(records):
            try:
                if embedded.needs_schema:
                    key, value = await schemas.print_record(record, embedded)
                else:
                    key, value = print_plain(embedded, record.key), print_plain(embedded, record.value)
            except HttpRefusal as refusal:
                instance.give_back(records[index:])
                if lines:
                    break
                place = f"{record.topic}-{record.partition} at offset {record.offset}"
                raise HttpRefusal(
                    refusal.error_code, f"{refusal.message} ({place}; continue behind it with POST .../positions)"
                ) from None
            except BaseException:
                instance.give_back(records)
                raise
            topic = topics.get(record.topic)
            if topic is None:
                topic = topics[record.topic] = dump_json(record.topic).decode()
            lines.append(
                f'{{"topic":{topic},"key":{key},"value":{value},"partition":{record.partition},'
                f'"offset":{record.offset},"timestamp":{record.timestamp}}}'
            )
        return f"[{','.join(lines)}]".encode()


async def _check_partitions(request: RestRequest, partitions: Iterable[TopicPartition]) -> None:
    """Refuse partitions that the cluster does not have; a consumer would ask for them again for a minute."""
    indexes: dict[str, set[int]] = {}
    for partition in partitions:
        indexes.setdefault(partition.topic, set()).add(partition.partition)
    if not indexes:
        return
    topics = await request.clients.admin.describe_topics_by_metadata(indexes)
    for name, topic in topics.items():
        if not indexes[name] <= {partition.partition for partition in topic.partitions}:
            raise partition_not_found()


def _positive(request: RestRequest, name: str, default: Any) -> Any:
    value = request.number(name, -2)
    if value == -2:
        return default
    if value < 0:
        raise bad_request(f"{name} is less than 0")
    return value
