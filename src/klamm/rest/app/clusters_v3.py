"""Routes of v3 about the cluster and its brokers."""

from __future__ import annotations

from klamm.client.admin.cluster_types import Node
from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.rest.app.cluster_routes import CLUSTER, V3Routes, add_v3
from klamm.rest.app.requests import RestRequest
from klamm.rest.core.fields import number_in_path
from klamm.rest.core.refusals import not_found


class ClusterRoutes(V3Routes):
    """Clusters and brokers."""

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        add_v3(router, "GET", "/clusters", self.list_clusters)
        add_v3(router, "GET", CLUSTER, self.get_cluster)
        add_v3(router, "GET", f"{CLUSTER}/brokers", self.list_brokers)
        add_v3(router, "GET", f"{CLUSTER}/brokers/{{broker_id}}", self.get_broker)
        add_v3(router, "GET", f"{CLUSTER}/brokers/{{broker_id}}/partition-replicas", self.list_broker_replicas)

    async def list_clusters(self, request: RestRequest) -> HttpResponse:
        """GET /clusters."""
        return json_response(self.printer(request).clusters(await request.clients.admin.describe_cluster()))

    async def get_cluster(self, request: RestRequest) -> HttpResponse:
        """GET /clusters/{cluster_id}."""
        return json_response(self.printer(request).cluster(await request.clients.admin.describe_cluster()))

    async def list_brokers(self, request: RestRequest) -> HttpResponse:
        """GET .../brokers."""
        printer = self.printer(request)
        brokers = sorted((await request.clients.admin.describe_cluster()).brokers)
        return json_response(printer.list_of("KafkaBroker", [printer.broker(broker) for broker in brokers], "brokers"))

    async def get_broker(self, request: RestRequest) -> HttpResponse:
        """GET .../brokers/{broker_id}."""
        printer = self.printer(request)
        return json_response(printer.broker(await self._find_broker(request)))

    async def list_broker_replicas(self, request: RestRequest) -> HttpResponse:
        """GET .../brokers/{broker_id}/partition-replicas: the replicas on a broker."""
        printer = self.printer(request)
        broker = (await self._find_broker(request)).id
        topics = await request.clients.admin.describe_topics_by_metadata()
        replicas = [
            printer.replica(name, partition, broker)
            for name, topic in sorted(topics.items())
            for partition in topic.partitions
            if broker in partition.replicas
        ]
        return json_response(printer.list_of("KafkaReplica", replicas, "brokers", broker, "partition-replicas"))

    async def _find_broker(self, request: RestRequest) -> Node:
        text = request.values["broker_id"]
        refusal = not_found(f"Broker {text} cannot be found.")
        broker_id = number_in_path(text, refusal)
        for broker in (await request.clients.admin.describe_cluster()).brokers:
            if broker.id == broker_id:
                return broker
        raise refusal
