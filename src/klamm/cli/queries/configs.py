"""Settings of topics, brokers and groups: what they are, where they come from, changing them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.cli.queries.topics import check
from klamm.client.blocking_cluster import BlockingCluster, BlockingConnection
from klamm.model.config_sources import source_of
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
KINDS: Final = {
    "topic": TOPIC,
    "broker": BROKER,
    "broker-logger": BROKER_LOGGER,
    "client-metrics": CLIENT_METRICS,
    "group": GROUP,
}
SET, DELETE, APPEND, SUBTRACT = range(4)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting and where its value comes from; `value` is None for a secret."""

    name: str
    value: str | None
    source: str
    sensitive: bool
    read_only: bool
    synonyms: list[tuple[str, str, str | None]] = field(default_factory=list)
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it."""
        return self.source == "DEFAULT_CONFIG"


def describe(
    cluster: BlockingCluster, kind: int, name: str, keys: Sequence[str] | None = None, *, documentation: bool = False
) -> list[Setting]:
    """The settings of one resource, in the broker's order."""
    return describe_all(cluster, kind, [name], keys, documentation=documentation)[name]


def describe_all(
    cluster: BlockingCluster,
    kind: int,
    names: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    documentation: bool = False,
) -> dict[str, list[Setting]]:
    """The settings of several resources of one kind; a broker is asked itself."""
    found: dict[str, list[Setting]] = {}
    by_broker: dict[str | None, list[str]] = {}
    for name in names:
        own = name if kind in (BROKER, BROKER_LOGGER) and name else None
        by_broker.setdefault(own, []).append(name)
    for own, asked in by_broker.items():
        asks: BlockingCluster | BlockingConnection = cluster if own is None else cluster.broker(_broker_id(own))
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=None if keys is None else list(keys)
                )
                for name in asked
            ],
            include_synonyms=True,
            include_documentation=documentation,
        )
        for result in asks.ask(request).results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {result.resource_name}")
            check(result.error_code, result.error_message)
            found[result.resource_name] = [_setting(config) for config in result.configs]
    return found


def _broker_id(name: str) -> int:
    if not name.isdecimal():
        raise KlammError(ErrorCode.INVALID_REQUEST, f"{name!r} is no broker: write its number")
    return int(name)


def _setting(each: Any) -> Setting:
    return Setting(
        name=each.name,
        value=each.value,
        source=source_of(each.config_source).name,
        sensitive=each.is_sensitive,
        read_only=each.read_only,
        synonyms=[(source_of(s.source).name, s.name, s.value) for s in each.synonyms],
        documentation=each.documentation,
    )


def alter(
    cluster: BlockingCluster,
    kind: int,
    name: str,
    operations: Iterable[tuple[int, str, str | None]],
    *,
    validate_only: bool = False,
) -> None:
    """Change settings of one resource, all or none: (SET | DELETE | APPEND | SUBTRACT, key, value)."""
    from klamm.protocol.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    changes = [AlterableConfig(name=key, config_operation=op, value=value) for op, key, value in operations]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    asks: BlockingCluster | BlockingConnection = cluster
    if kind in (BROKER, BROKER_LOGGER) and name:
        asks = cluster.broker(_broker_id(name))
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    for result in asks.ask(request).responses:
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and kind == TOPIC:
            raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        check(result.error_code, result.error_message)
