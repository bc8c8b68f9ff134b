"""Routes of v3 about settings of topics, of brokers, and of all brokers together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from klamm.client.admin.config_types import AlterOp, ConfigEntry
from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.model.config_resources import ConfigResource
from klamm.rest.app.cluster_routes import CLUSTER, V3Routes, add_v3
from klamm.rest.app.requests import RestRequest
from klamm.rest.core.admin_requests import parse_alterations, parse_config_value
from klamm.rest.core.fields import number_in_path, parse_object
from klamm.rest.core.refusals import not_found
from klamm.rest.core.resources import ResourcePrinter


class ConfigRoutes(V3Routes):
    """Settings: list, get, set, reset, and several at a time."""

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        for configs in (
            f"{CLUSTER}/topics/{{topic_name}}/configs",
            f"{CLUSTER}/brokers/{{broker_id}}/configs",
            f"{CLUSTER}/broker-configs",
        ):
            add_v3(router, "GET", configs, self.list_configs)
            add_v3(router, "GET", f"{configs}/{{name}}", self.get_config)
            add_v3(router, "PUT", f"{configs}/{{name}}", self.set_config)
            add_v3(router, "DELETE", f"{configs}/{{name}}", self.reset_config)
            add_v3(router, "POST", f"{configs}:alter", self.alter_configs)

    async def list_configs(self, request: RestRequest) -> HttpResponse:
        """GET .../configs; of the topic `-`, those of all topics."""
        printer = self.printer(request)
        if request.values.get("topic_name") == "-":
            return await self._list_of_all_topics(request, printer)
        resource = await self._resource(request)
        entries = (await request.clients.admin.describe_configs([resource], synonyms=True))[resource]
        print_entry, kind, place = _printing(printer, request.values)
        return json_response(printer.list_of(kind, [print_entry(entry) for entry in entries.values()], *place))

    async def _list_of_all_topics(self, request: RestRequest, printer: ResourcePrinter) -> HttpResponse:
        topics = [topic.name for topic in await request.clients.admin.list_topics(internal=True)]
        described = await request.clients.admin.describe_configs(
            [ConfigResource.topic(name) for name in topics], synonyms=True
        )
        entries = [
            printer.topic_config(resource.name, entry)
            for resource, configs in sorted(described.items())
            for entry in configs.values()
        ]
        return json_response(printer.list_of("KafkaTopicConfig", entries, "topics", "-", "configs"))

    async def get_config(self, request: RestRequest) -> HttpResponse:
        """GET .../configs/{name}."""
        printer = self.printer(request)
        entry = await self._find(request, await self._resource(request))
        print_entry, _, _ = _printing(printer, request.values)
        return json_response(print_entry(entry))

    async def set_config(self, request: RestRequest) -> HttpResponse:
        """PUT .../configs/{name} {"value"}."""
        self.printer(request)
        value = parse_config_value(parse_object(request.body))
        resource = await self._resource(request)
        await self._check_name(request, resource)
        change = (AlterOp.DELETE, None) if value is None else (AlterOp.SET, value)
        await request.clients.admin.alter_configs({resource: {request.values["name"]: change}})
        return HttpResponse(204)

    async def reset_config(self, request: RestRequest) -> HttpResponse:
        """DELETE .../configs/{name}: back to the default."""
        self.printer(request)
        resource = await self._resource(request)
        await self._check_name(request, resource)
        await request.clients.admin.alter_configs({resource: {request.values["name"]: (AlterOp.DELETE, None)}})
        return HttpResponse(204)

    async def alter_configs(self, request: RestRequest) -> HttpResponse:
        """POST .../configs:alter: all changes, or none."""
        self.printer(request)
        changes, validate_only = parse_alterations(parse_object(request.body))
        resource = await self._resource(request)
        known = (await request.clients.admin.describe_configs([resource]))[resource]
        for name in changes:
            if name not in known and resource.name:
                raise self._missing(name, resource)
        if changes:
            await request.clients.admin.alter_configs({resource: changes}, validate_only=validate_only)
        return HttpResponse(204)

    async def _resource(self, request: RestRequest) -> ConfigResource:
        if "topic_name" in request.values:
            name = request.values["topic_name"]
            await request.clients.admin.describe_topics_by_metadata([name])  # raises for a topic that does not exist
            return ConfigResource.topic(name)
        if "broker_id" not in request.values:
            return ConfigResource.broker()
        text = request.values["broker_id"]
        refusal = not_found(f"Broker {text} cannot be found.")
        broker_id = number_in_path(text, refusal)
        if all(broker.id != broker_id for broker in (await request.clients.admin.describe_cluster()).brokers):
            raise refusal
        return ConfigResource.broker(broker_id)

    async def _check_name(self, request: RestRequest, resource: ConfigResource) -> None:
        # Defaults of all brokers are described only where they are set: what is not described may be set all the same.
        if resource.name:
            await self._find(request, resource)

    async def _find(self, request: RestRequest, resource: ConfigResource) -> ConfigEntry:
        name = request.values["name"]
        entries = (await request.clients.admin.describe_configs([resource], keys=[name], synonyms=True))[resource]
        entry = entries.get(name)
        if entry is None:
            raise self._missing(name, resource)
        return entry

    def _missing(self, name: str, resource: ConfigResource) -> Exception:
        return not_found(
            f"Config {name} cannot be found for {resource.type.name} {resource.name}"
            f" in cluster {self._service.cluster_id}."
        )


def _printing(printer: ResourcePrinter, values: Mapping[str, str]) -> tuple[Any, str, tuple[object, ...]]:
    """Return what prints an entry, its kind, and the place of the list."""
    print_entry: Any
    if "topic_name" in values:
        topic = values["topic_name"]
        print_entry = partial(printer.topic_config, topic)
        return print_entry, "KafkaTopicConfig", ("topics", topic, "configs")
    if "broker_id" in values:
        broker = int(values["broker_id"])
        print_entry = partial(printer.broker_config, broker)
        return print_entry, "KafkaBrokerConfig", ("brokers", broker, "configs")
    return printer.cluster_config, "KafkaClusterConfig", ("broker-configs",)
