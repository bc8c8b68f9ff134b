"""Settings of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from klamm.client.admin.base import AdminBase, Outcomes
from klamm.client.admin.types import AlterOp, ConfigEntry, ConfigResource, ResourceType
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

Change = str | int | float | bool | None | tuple[AlterOp, str | None]
"""A new value, None to go back to the default, or an operation and its value."""


class ConfigsAdmin(AdminBase):
    """Questions and orders about settings."""

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        keys: Iterable[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Every setting of the resources, or those of some names; a broker is asked about itself."""
        groups: dict[int | None, list[ConfigResource]] = {}
        for each in resources:
            groups.setdefault(_owner(each), []).append(ConfigResource(*each))
        wanted = None if keys is None else list(keys)

        async def once() -> Outcomes:
            outcomes = Outcomes()
            for broker, mine in groups.items():
                request = DescribeConfigsRequest(
                    resources=[
                        DescribeConfigsResource(
                            resource_type=each.type, resource_name=each.name, configuration_keys=wanted
                        )
                        for each in mine
                    ],
                    include_synonyms=synonyms,
                    include_documentation=documentation,
                )
                answer = await self.request(request, broker=broker)
                for result in answer.results:
                    key = ConfigResource(ResourceType(result.resource_type), result.resource_name)
                    outcomes.add(
                        key,
                        result.error_code,
                        result.error_message,
                        {each.name: _entry(each) for each in result.configs},
                    )
            return outcomes

        return (await self._retrying(once)).settled()

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, Change]], *, validate_only: bool = False
    ) -> None:
        """Change single settings and leave the rest: a value sets, None deletes, (AlterOp, value) does as it says."""
        groups: dict[int | None, dict[ConfigResource, Mapping[str, Change]]] = {}
        for resource, wanted in changes.items():
            groups.setdefault(_owner(resource), {})[ConfigResource(*resource)] = wanted

        async def once() -> Outcomes:
            outcomes = Outcomes()
            for broker, mine in groups.items():
                request = IncrementalAlterConfigsRequest(
                    resources=[
                        AlterConfigsResource(
                            resource_type=resource.type,
                            resource_name=resource.name,
                            configs=[_alter(name, change) for name, change in wanted.items()],
                        )
                        for resource, wanted in mine.items()
                    ],
                    validate_only=validate_only,
                )
                answer = await self.request(request, broker=broker)
                for each in answer.responses:
                    key = ConfigResource(ResourceType(each.resource_type), each.resource_name)
                    outcomes.add(key, each.error_code, each.error_message)
            return outcomes

        (await self._retrying(once)).settled()

    async def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        """The resources that have settings of their own."""
        answer = await self._ask(ListConfigResourcesRequest(resource_types=[int(each) for each in types]))
        return sorted(
            ConfigResource(ResourceType(each.resource_type), each.resource_name) for each in answer.config_resources
        )


def _owner(resource: ConfigResource) -> int | None:
    """A broker's own settings are its own to tell and to change."""
    of_broker = resource[0] in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
    return int(resource[1]) if of_broker and resource[1] else None


def _alter(name: str, change: Change) -> AlterableConfig:
    if isinstance(change, tuple):
        operation, value = change
        return AlterableConfig(name=name, config_operation=int(operation), value=value)
    if change is None:
        return AlterableConfig(name=name, config_operation=int(AlterOp.DELETE), value=None)
    text = str(change).lower() if isinstance(change, bool) else str(change)
    return AlterableConfig(name=name, config_operation=int(AlterOp.SET), value=text)


def _entry(found: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        found.name,
        found.value,
        source_of(found.config_source),
        found.read_only,
        found.is_sensitive,
        tuple(ConfigSynonym(each.name, each.value, source_of(each.source)) for each in found.synonyms),
        found.config_type,
        found.documentation,
    )
