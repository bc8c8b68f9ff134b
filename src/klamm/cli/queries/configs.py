"""Configs of topics, brokers and groups: reading and changing them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from klamm.client.admin.config_types import AlterOp, ConfigEntry
from klamm.client.admin.configs import ConfigsAdmin
from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.errors import KafkaError, SomeFailed
from klamm.model.config_resources import ConfigResource, ResourceType
from klamm.model.errors import ErrorCode, KlammError

TOPIC: Final = ResourceType.TOPIC
BROKER: Final = ResourceType.BROKER
GROUP: Final = ResourceType.GROUP
KINDS: Final = {
    "topic": ResourceType.TOPIC,
    "broker": ResourceType.BROKER,
    "broker-logger": ResourceType.BROKER_LOGGER,
    "client-metrics": ResourceType.CLIENT_METRICS,
    "group": ResourceType.GROUP,
}
AlterConfigOp = tuple[AlterOp, str, str | None]
"""What to do with a config: the operation, its name, its value."""


def describe(
    cluster: BlockingCluster,
    kind: ResourceType,
    name: str,
    keys: Sequence[str] | None = None,
    *,
    documentation: bool = False,
) -> list[ConfigEntry]:
    """The configs of one resource, in the broker's order."""
    return describe_all(cluster, kind, [name], keys, documentation=documentation)[name]


def describe_all(
    cluster: BlockingCluster,
    kind: ResourceType,
    names: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    documentation: bool = False,
) -> dict[str, list[ConfigEntry]]:
    """The configs of several resources of one kind."""
    resources = [_resource(kind, name) for name in names]
    work = ConfigsAdmin(cluster).describe_configs(resources, keys=keys, synonyms=True, documentation=documentation)
    try:
        described = cluster.run(work)
    except KafkaError as error:
        raise _lookup_error(error) from None
    return {resource.name: list(entries.values()) for resource, entries in described.items()}


def list_resources(cluster: BlockingCluster, kind: ResourceType) -> list[str]:
    """The names of the resources of a kind that have configs of their own."""
    return [resource.name for resource in cluster.run(ConfigsAdmin(cluster).list_config_resources([kind]))]


def _resource(kind: ResourceType, name: str) -> ConfigResource:
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and name and not name.isdecimal():
        raise KlammError(ErrorCode.INVALID_REQUEST, f"{name!r} is no broker: write its number")
    return ConfigResource(kind, name)


def _lookup_error(error: KafkaError) -> KlammError:
    first = next(iter(error.failures.values())) if isinstance(error, SomeFailed) else error
    if first.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and first.item is not None:
        return KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {first.item.name}")
    return first


def alter(
    cluster: BlockingCluster,
    kind: ResourceType,
    name: str,
    operations: Iterable[AlterConfigOp],
    *,
    validate_only: bool = False,
) -> None:
    """Change configs of one resource, all or none."""
    changes: dict[str, tuple[AlterOp, str | None]] = {}
    repeated = []
    for operation, key, value in operations:
        if key in changes:
            repeated.append(key)
        changes[key] = operation, value
    if repeated:  # the broker would refuse such a request in the same words
        raise KlammError(ErrorCode.INVALID_REQUEST, f"These configs are named twice: {','.join(repeated)}")
    try:
        cluster.run(ConfigsAdmin(cluster).alter_configs({_resource(kind, name): changes}, validate_only=validate_only))
    except KafkaError as error:
        raise (_lookup_error(error) if kind is ResourceType.TOPIC else error) from None
