"""Routes of v3 about partitions, replicas and reassignments."""

from __future__ import annotations

from klamm.client.admin.offset_types import OffsetSpec
from klamm.client.admin.topic_types import PartitionDescription
from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.model.ids import TopicPartition
from klamm.rest.app.cluster_routes import CLUSTER, V3Routes, add_v3
from klamm.rest.app.requests import RestRequest
from klamm.rest.core.fields import number_in_path
from klamm.rest.core.refusals import not_found, unknown_topic


class PartitionRoutes(V3Routes):
    """Partitions, their replicas, offsets and reassignments."""

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        partitions = f"{CLUSTER}/topics/{{topic_name}}/partitions"
        partition = f"{partitions}/{{partition_id}}"
        add_v3(router, "GET", partitions, self.list_partitions)
        add_v3(router, "GET", partition, self.get_partition)
        add_v3(router, "GET", f"{partition}/replicas", self.list_replicas)
        add_v3(router, "GET", f"{partition}/replicas/{{broker_id}}", self.get_replica)
        add_v3(router, "GET", f"{partition}/offset", self.get_offsets)
        add_v3(router, "GET", f"{partition}/reassignment", self.get_reassignment)

    async def list_partitions(self, request: RestRequest) -> HttpResponse:
        """GET .../partitions."""
        printer = self.printer(request)
        topic = request.values["topic_name"]
        resources = [printer.partition(topic, partition) for partition in await self._partitions(request, topic)]
        return json_response(printer.list_of("KafkaPartition", resources, "topics", topic, "partitions"))

    async def get_partition(self, request: RestRequest) -> HttpResponse:
        """GET .../partitions/{partition_id}."""
        printer = self.printer(request)
        return json_response(printer.partition(request.values["topic_name"], await self._find(request)))

    async def list_replicas(self, request: RestRequest) -> HttpResponse:
        """GET .../partitions/{partition_id}/replicas."""
        printer = self.printer(request)
        topic, partition = request.values["topic_name"], await self._find(request)
        place = ("topics", topic, "partitions", partition.partition, "replicas")
        resources = [printer.replica(topic, partition, broker) for broker in partition.replicas]
        return json_response(printer.list_of("KafkaReplica", resources, *place))

    async def get_replica(self, request: RestRequest) -> HttpResponse:
        """GET .../partitions/{partition_id}/replicas/{broker_id}."""
        printer = self.printer(request)
        topic, partition = request.values["topic_name"], await self._find(request)
        refusal = not_found(
            f"Replica {request.values['broker_id']} of partition {partition.partition} of topic {topic}"
            f" could not be found on cluster {self._service.cluster_id}."
        )
        broker = number_in_path(request.values["broker_id"], refusal)
        if broker not in partition.replicas:
            raise refusal
        return json_response(printer.replica(topic, partition, broker))

    async def get_offsets(self, request: RestRequest) -> HttpResponse:
        """GET .../partitions/{partition_id}/offset: the first offset, and the one behind the last record."""
        printer = self.printer(request)
        partition = TopicPartition(request.values["topic_name"], (await self._find(request)).partition)
        earliest = (await request.clients.admin.list_offsets({partition: OffsetSpec.EARLIEST}))[partition]
        latest = (await request.clients.admin.list_offsets({partition: OffsetSpec.LATEST}))[partition]
        return json_response(printer.offsets(partition, earliest.offset, latest.offset))

    async def get_reassignment(self, request: RestRequest) -> HttpResponse:
        """GET .../partitions/{partition_id}/reassignment; `-` is all partitions, and all topics."""
        printer = self.printer(request)
        topic, text = request.values["topic_name"], request.values["partition_id"]
        if text == "-":
            if topic != "-":
                await self._partitions(request, topic)
            moves = await request.clients.admin.list_partition_reassignments()
            resources = [
                printer.reassignment(partition, move)
                for partition, move in sorted(moves.items())
                if topic in ("-", partition.topic)
            ]
            place = ("topics", topic, "partitions", "-", "reassignment")
            return json_response(printer.list_of("KafkaReassignment", resources, *place))
        partition = TopicPartition(topic, (await self._find(request)).partition)
        moves = await request.clients.admin.list_partition_reassignments([partition])
        if partition not in moves:
            raise not_found(f"Partition {partition.partition} of topic {topic} is not being reassigned.")
        return json_response(printer.reassignment(partition, moves[partition]))

    async def _partitions(self, request: RestRequest, topic: str) -> tuple[PartitionDescription, ...]:
        return (await request.clients.admin.describe_topics_by_metadata([topic]))[topic].partitions

    async def _find(self, request: RestRequest) -> PartitionDescription:
        index = number_in_path(request.values["partition_id"], unknown_topic())
        for partition in await self._partitions(request, request.values["topic_name"]):
            if partition.partition == index:
                return partition
        raise unknown_topic()
