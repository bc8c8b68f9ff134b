"""Access rules: reading, adding and removing them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from klamm.cli.queries.topics import check
from klamm.client.blocking_cluster import BlockingCluster
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from klamm.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from klamm.protocol.messages.describe_acls import DescribeAclsRequest

CLUSTER_NAME: Final = "kafka-cluster"


@dataclass(frozen=True, slots=True, order=True)
class Resource:
    """What is protected; of a filter, what rules are looked for, a name of None matching all."""

    type: AclResourceType
    name: str | None
    pattern: PatternType


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """Who may, or may not, do what from where."""

    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission


ALL_RESOURCES: Final = Resource(AclResourceType.ANY, None, PatternType.ANY)


def list_rules(cluster: BlockingCluster, resources: Iterable[Resource]) -> dict[Resource, list[Rule]]:
    """The rules that match any of the filters, by resource; all of them without a filter."""
    rules: dict[Resource, list[Rule]] = {}
    for resource in list(resources) or [ALL_RESOURCES]:
        request = DescribeAclsRequest(
            resource_type_filter=resource.type,
            resource_name_filter=resource.name,
            pattern_type_filter=resource.pattern,
            operation=AclOperation.ANY,
            permission_type=AclPermission.ANY,
        )
        answer = cluster.ask(request)
        check(answer.error_code, answer.error_message)
        for described in answer.resources:
            owner = Resource(
                AclResourceType(described.resource_type), described.resource_name, PatternType(described.pattern_type)
            )
            known = rules.setdefault(owner, [])
            for acl in described.acls:
                rule = Rule(acl.principal, acl.host, AclOperation(acl.operation), AclPermission(acl.permission_type))
                if rule not in known:
                    known.append(rule)
    return rules


def add_rules(cluster: BlockingCluster, resource: Resource, rules: Iterable[Rule]) -> None:
    """Add rules to a resource; KlammError of the first that was refused."""
    creations = [
        AclCreation(
            resource_type=resource.type,
            resource_name=resource.name or "",
            resource_pattern_type=resource.pattern,
            principal=rule.principal,
            host=rule.host,
            operation=rule.operation,
            permission_type=rule.permission,
        )
        for rule in rules
    ]
    for result in cluster.ask(CreateAclsRequest(creations=creations)).results:
        check(result.error_code, result.error_message)


def remove_rules(cluster: BlockingCluster, resource: Resource, rules: Iterable[Rule]) -> None:
    """Remove rules of the resources a filter matches, all of them without a rule; KlammError when refused."""
    wanted: list[Rule | None] = list(rules) or [None]
    filters = [
        DeleteAclsFilter(
            resource_type_filter=resource.type,
            resource_name_filter=resource.name,
            pattern_type_filter=resource.pattern,
            principal_filter=rule.principal if rule else None,
            host_filter=rule.host if rule else None,
            operation=rule.operation if rule else AclOperation.ANY,
            permission_type=rule.permission if rule else AclPermission.ANY,
        )
        for rule in wanted
    ]
    for result in cluster.ask(DeleteAclsRequest(filters=filters)).filter_results:
        check(result.error_code, result.error_message)
