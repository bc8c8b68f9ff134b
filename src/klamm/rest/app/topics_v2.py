"""Routes of v2 about topics, partitions and brokers; produces records."""

from __future__ import annotations

from typing import Any

from klamm.client.admin.offset_types import OffsetSpec
from klamm.client.admin.topic_types import PartitionDescription, TopicDescription
from klamm.client.errors import UnknownTopicOrPartitionError
from klamm.http.media_types import content_type
from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.model.config_resources import ConfigResource
from klamm.model.ids import TopicPartition
from klamm.rest.app.requests import RestRequest
from klamm.rest.core.embedded import encode_plain
from klamm.rest.core.fields import dump_json, number_in_path, parse_object
from klamm.rest.core.media_types import EmbeddedFormat, format_of
from klamm.rest.core.produce_v2 import parse_produce
from klamm.rest.core.refusals import partition_not_found, topic_not_found
from klamm.rest.openapi import V2
from klamm.rest.producing import print_offset


class TopicRoutesV2:
    """Topics, partitions, brokers."""

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        topic, partition = "/topics/{topic}", "/topics/{topic}/partitions/{partition}"
        router.add("GET", "/topics", self.list_topics, tag=V2)
        router.add("GET", topic, self.get_topic, tag=V2)
        router.add("POST", topic, self.produce, tag=V2)
        router.add("GET", f"{topic}/partitions", self.list_partitions, tag=V2)
        router.add("GET", partition, self.get_partition, tag=V2)
        router.add("POST", partition, self.produce, tag=V2)
        router.add("GET", f"{partition}/offsets", self.get_offsets, tag=V2)
        router.add("GET", "/brokers", self.list_brokers, tag=V2)

    async def list_topics(self, request: RestRequest) -> HttpResponse:
        """GET /topics."""
        topics = await request.clients.admin.list_topics(internal=True)
        return json_response(sorted(topic.name for topic in topics))

    async def get_topic(self, request: RestRequest) -> HttpResponse:
        """GET /topics/{topic}."""
        topic = await self._describe(request)
        resource = ConfigResource.topic(topic.name)
        configs = (await request.clients.admin.describe_configs([resource]))[resource]
        return json_response(
            {
                "name": topic.name,
                "configs": {name: entry.value for name, entry in configs.items()},
                "partitions": [_partition_fields(partition) for partition in topic.partitions],
            }
        )

    async def list_partitions(self, request: RestRequest) -> HttpResponse:
        """GET /topics/{topic}/partitions."""
        topic = await self._describe(request)
        return json_response([_partition_fields(partition) for partition in topic.partitions])

    async def get_partition(self, request: RestRequest) -> HttpResponse:
        """GET /topics/{topic}/partitions/{partition}."""
        return json_response(_partition_fields(await self._find_partition(request)))

    async def get_offsets(self, request: RestRequest) -> HttpResponse:
        """GET /topics/{topic}/partitions/{partition}/offsets: the first offset, and the one behind the last record."""
        partition = TopicPartition(request.values["topic"], (await self._find_partition(request)).partition)
        admin = request.clients.admin
        earliest = (await admin.list_offsets({partition: OffsetSpec.EARLIEST}))[partition]
        latest = (await admin.list_offsets({partition: OffsetSpec.LATEST}))[partition]
        return json_response({"beginning_offset": earliest.offset, "end_offset": latest.offset})

    async def list_brokers(self, request: RestRequest) -> HttpResponse:
        """GET /brokers."""
        cluster = await request.clients.admin.describe_cluster()
        return json_response({"brokers": sorted(broker.id for broker in cluster.brokers)})

    async def produce(self, request: RestRequest) -> HttpResponse:
        """POST /topics/{topic} and /topics/{topic}/partitions/{partition}: records in the format of Content-Type."""
        topic = request.values["topic"]
        partition = None
        if "partition" in request.values:
            partition = number_in_path(request.values["partition"], partition_not_found())
        # Without a format the records are binary, as in Kafka REST.
        embedded = format_of(content_type(request.headers)) or EmbeddedFormat.BINARY
        body = parse_produce(parse_object(request.body), embedded, partition)
        producing = await request.clients.open_producer()
        try:
            await producing.check_topic(topic, partition)
        except UnknownTopicOrPartitionError:
            raise topic_not_found() from None
        ids: dict[str, Any] = {"key_schema_id": None, "value_schema_id": None}
        if embedded.needs_schema:
            encoded, ids = await request.clients.schemas.encode_records(topic, embedded, body)
        else:
            # All before the first is sent: a record that cannot be encoded must not leave half of a request behind.
            encoded = [
                (encode_plain(embedded, key), encode_plain(embedded, value), index)
                for key, value, index in body.records
            ]
        sent = [await producing.send(topic, key, value, index) for key, value, index in encoded]
        offsets = ",".join([print_offset(await producing.wait(outcome)) for outcome in sent])
        key_id, value_id = (dump_json(ids[name]).decode() for name in ("key_schema_id", "value_schema_id"))
        text = f'{{"offsets":[{offsets}],"key_schema_id":{key_id},"value_schema_id":{value_id}}}'
        return HttpResponse(body=text.encode())

    async def _describe(self, request: RestRequest) -> TopicDescription:
        name = request.values["topic"]
        try:
            return (await request.clients.admin.describe_topics_by_metadata([name]))[name]
        except UnknownTopicOrPartitionError:
            raise topic_not_found() from None

    async def _find_partition(self, request: RestRequest) -> PartitionDescription:
        index = number_in_path(request.values["partition"], partition_not_found())
        for partition in (await self._describe(request)).partitions:
            if partition.partition == index:
                return partition
        raise partition_not_found()


def _partition_fields(partition: PartitionDescription) -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "leader": partition.leader,
        "replicas": [
            {"broker": broker, "leader": broker == partition.leader, "in_sync": broker in partition.isr}
            for broker in partition.replicas
        ],
    }
