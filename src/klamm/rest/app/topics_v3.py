"""Routes of v3 about topics."""

from __future__ import annotations

from klamm.client.admin.topic_types import TopicDescription
from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.rest.app.cluster_routes import CLUSTER, V3Routes, add_v3
from klamm.rest.app.requests import RestRequest
from klamm.rest.core.admin_requests import parse_new_topic
from klamm.rest.core.fields import number_of, parse_object


class TopicRoutesV3(V3Routes):
    """Topics: list, create, describe, add partitions, delete."""

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        topic = f"{CLUSTER}/topics/{{topic_name}}"
        add_v3(router, "GET", f"{CLUSTER}/topics", self.list_topics)
        add_v3(router, "POST", f"{CLUSTER}/topics", self.create)
        add_v3(router, "GET", topic, self.get_topic)
        add_v3(router, "PATCH", topic, self.add_partitions)
        add_v3(router, "DELETE", topic, self.delete)

    async def list_topics(self, request: RestRequest) -> HttpResponse:
        """GET .../topics."""
        printer = self.printer(request)
        topics = await request.clients.admin.describe_topics_by_metadata(
            authorized_operations=request.flag("include_authorized_operations")
        )
        resources = [printer.topic(topic) for _, topic in sorted(topics.items())]
        return json_response(printer.list_of("KafkaTopic", resources, "topics"))

    async def get_topic(self, request: RestRequest) -> HttpResponse:
        """GET .../topics/{topic_name}."""
        printer = self.printer(request)
        return json_response(printer.topic(await self._describe(request)))

    async def create(self, request: RestRequest) -> HttpResponse:
        """POST .../topics: 201 with the topic; with validate_only, 200 with what it would be."""
        printer = self.printer(request)
        topic, validate_only = parse_new_topic(parse_object(request.body))
        created = (await request.clients.admin.create_topics([topic], validate_only=validate_only))[topic.name]
        # Not described again: the broker that answers may not have its metadata yet.
        count, factor = created.num_partitions, created.replication_factor
        if topic.replica_assignment:
            count = len(topic.replica_assignment)
            factor = len(next(iter(topic.replica_assignment.values())))
        return json_response(printer.new_topic(topic.name, count, factor), 200 if validate_only else 201)

    async def add_partitions(self, request: RestRequest) -> HttpResponse:
        """PATCH .../topics/{topic_name} {"partitions_count"}: more partitions."""
        printer = self.printer(request)
        name = request.values["topic_name"]
        count = number_of(parse_object(request.body), "partitions_count", least=1)
        await self._describe(request)
        await request.clients.admin.create_partitions({name: count})
        return json_response(printer.topic(await self._describe(request)))

    async def delete(self, request: RestRequest) -> HttpResponse:
        """DELETE .../topics/{topic_name}."""
        self.printer(request)
        await request.clients.admin.delete_topics([request.values["topic_name"]])
        return HttpResponse(204)

    async def _describe(self, request: RestRequest) -> TopicDescription:
        name = request.values["topic_name"]
        operations = request.flag("include_authorized_operations")
        topics = await request.clients.admin.describe_topics_by_metadata([name], authorized_operations=operations)
        return topics[name]
