"""Quotas for kafka-configs: limits of users, clients and ips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from klamm.cli.kafka.script import ToolFailed
from klamm.client.errors import raise_for

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

_TYPES = {"users": "user", "clients": "client-id", "ips": "ip"}


def run(
    cluster: BlockingCluster,
    entities: Sequence[tuple[str, str | None]],
    additions: dict[str, str],
    deletions: list[str],
    *,
    describe: bool,
) -> int:
    """Show or change the quotas of one combination of entities."""
    if any(name.startswith("SCRAM-") for name in (*additions, *deletions)):
        raise ToolFailed(
            "Klamm does not let users in by SCRAM password yet: there is none to set or take away, and clients need"
            " none to get in"
        )
    if describe:
        for entity, values in _describe(cluster, entities):
            words = ", ".join(_entity(kind, name) for kind, name in entity)
            limits = ", ".join(f"{key}={value}" for key, value in values.items())
            print(f"Quota configs for {words} are {limits}")
        return 0
    _alter(cluster, entities, additions, deletions)
    kinds = "-".join(kind.removesuffix("s") for kind, _ in entities)
    names = "-".join("default" if name is None else name for _, name in entities)
    print(f"Completed updating config for {kinds} {names}.")
    return 0


def _entity(kind: str, name: str | None) -> str:
    return f"the default {kind}" if name is None else f"{kind} '{name}'"


def _describe(
    cluster: BlockingCluster, entities: Sequence[tuple[str, str | None]]
) -> list[tuple[Any, dict[str, float]]]:
    from klamm.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest

    components = []
    for kind, name in entities:
        match_type = 2 if name == "*" else 1 if name is None else 0
        components.append(
            ComponentData(entity_type=_TYPES[kind], match_type=match_type, match=name if match_type == 0 else None)
        )
    answer = cluster.ask(DescribeClientQuotasRequest(components=components, strict=False))
    raise_for(answer.error_code, answer.error_message)
    return [
        (
            [(part.entity_type, part.entity_name) for part in entry.entity],
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries or ()
    ]


def _alter(
    cluster: BlockingCluster,
    entities: Sequence[tuple[str, str | None]],
    additions: dict[str, str],
    deletions: list[str],
) -> None:
    from klamm.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData

    try:
        ops = [OpData(key=key, value=float(value), remove=False) for key, value in additions.items()]
    except ValueError:
        raise ToolFailed("Cannot parse quota configuration value: write a number") from None
    ops += [OpData(key=key, value=0.0, remove=True) for key in deletions]
    entity = [EntityData(entity_type=_TYPES[kind], entity_name=name) for kind, name in entities]
    answer = cluster.ask(AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=ops)], validate_only=False))
    for entry in answer.entries:
        raise_for(entry.error_code, entry.error_message)
