"""Settings of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from klamm.client.admin.base import AdminBase, Outcomes
from klamm.client.admin.config_types import AlterOp, ConfigEntry
from klamm.client.config import ConfigValue, value_text
from klamm.client.core.arguments import several, texts
from klamm.model.config_resources import ConfigResource, ResourceType
from klamm.model.config_sources import ConfigSynonym, source_of
from klamm.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from klamm.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from klamm.protocol.messages.list_config_resources import ListConfigResourcesRequest

ConfigAlteration = ConfigValue | tuple[AlterOp, ConfigValue]
"""A new value, None to go back to the default, or an operation and its value."""


_CHANGES = '{ConfigResource.topic("orders"): {"retention.ms": 60000}}'


class ConfigsAdmin(AdminBase):
    """Requests about configs."""

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        keys: Iterable[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """All settings of the resources, or those in `keys`; a broker's come from that broker."""
        groups: dict[int | None, list[ConfigResource]] = {}
        for resource in _resources(resources, "describe_configs"):
            groups.setdefault(_owner(resource), []).append(resource)
        wanted = None if keys is None else texts(keys, "describe_configs, keys")

        async def once() -> Outcomes:
            outcomes = Outcomes()
            for broker, mine in groups.items():
                request = DescribeConfigsRequest(
                    resources=[
                        DescribeConfigsResource(
                            resource_type=resource.type, resource_name=resource.name, configuration_keys=wanted
                        )
                        for resource in mine
                    ],
                    include_synonyms=synonyms,
                    include_documentation=documentation,
                )
                response = await self.request(request, broker=broker)
                for result in response.results:
                    key = ConfigResource(ResourceType(result.resource_type), result.resource_name)
                    outcomes.add(
                        key,
                        result.error_code,
                        result.error_message,
                        {config.name: _entry(config) for config in result.configs},
                    )
            return outcomes

        return (await self._retrying(once)).results_or_raise()

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, ConfigAlteration]], *, validate_only: bool = False
    ) -> None:
        """Change single settings and leave the rest: a value sets, None deletes, (AlterOp, value) is any operation."""
        if not isinstance(changes, Mapping):
            raise TypeError(f"alter_configs takes {_CHANGES}, not {changes!r}")
        groups: dict[int | None, dict[ConfigResource, list[AlterableConfig]]] = {}
        for resource in _resources(changes, "alter_configs"):
            wanted = changes[resource]
            if not isinstance(wanted, Mapping):
                raise TypeError(f"alter_configs takes {_CHANGES}; {wanted!r} is no mapping")
            mine = [_alter(name, change) for name, change in wanted.items()]
            groups.setdefault(_owner(resource), {})[resource] = mine

        async def once() -> Outcomes:
            outcomes = Outcomes()
            for broker, mine in groups.items():
                request = IncrementalAlterConfigsRequest(
                    resources=[
                        AlterConfigsResource(resource_type=resource.type, resource_name=resource.name, configs=wanted)
                        for resource, wanted in mine.items()
                    ],
                    validate_only=validate_only,
                )
                response = await self.request(request, broker=broker)
                for result in response.responses:
                    key = ConfigResource(ResourceType(result.resource_type), result.resource_name)
                    outcomes.add(key, result.error_code, result.error_message)
            return outcomes

        (await self._retrying(once)).results_or_raise()

    async def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        """The resources that have settings of their own."""
        wanted = several(types, int, "list_config_resources", "ResourceType.TOPIC")
        response = await self._send(ListConfigResourcesRequest(resource_types=[int(kind) for kind in wanted]))
        return sorted(
            ConfigResource(ResourceType(resource.resource_type), resource.resource_name)
            for resource in response.config_resources
        )


def _resources(given: Any, what: str) -> list[ConfigResource]:
    if isinstance(given, ConfigResource):
        raise TypeError(f"{what} takes several: write [ConfigResource({given.type!s}, {given.name!r})]")
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f'{what} takes resources: write [ConfigResource.topic("orders")], not {given!r}')
    resources = []
    for resource in given:
        if not isinstance(resource, tuple) or len(resource) != 2:
            raise TypeError(f'{what} takes resources, e.g. ConfigResource.topic("orders"), not {resource!r}')
        resources.append(ConfigResource(*resource))
    return resources


def _owner(resource: ConfigResource) -> int | None:
    """The broker that must handle the request: its static configs are known to itself alone; None for any."""
    of_broker = resource[0] in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
    return int(resource[1]) if of_broker and resource[1] else None


def _alter(name: str, change: ConfigAlteration) -> AlterableConfig:
    value: Any = change
    operation = AlterOp.DELETE if change is None else AlterOp.SET
    if isinstance(change, tuple) and change and isinstance(change[0], AlterOp):
        operation, value = change
    text = None if value is None else value_text(name, value)
    return AlterableConfig(name=name, config_operation=int(operation), value=text)


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        source_of(config.config_source),
        config.read_only,
        config.is_sensitive,
        tuple(ConfigSynonym(synonym.name, synonym.value, source_of(synonym.source)) for synonym in config.synonyms),
        config.config_type,
        config.documentation,
    )
