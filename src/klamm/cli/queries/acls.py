"""ACLs by resource, as kafka-acls shows and takes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from klamm.client.admin.acl_types import AclBinding, AclFilter
from klamm.client.admin.acls import AccessAdmin
from klamm.client.blocking_cluster import BlockingCluster
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType

CLUSTER_NAME: Final = "kafka-cluster"


@dataclass(frozen=True, slots=True, order=True)
class AclResource:
    """A protected resource; in a filter, a name of None matches all."""

    type: AclResourceType
    name: str | None
    pattern: PatternType


@dataclass(frozen=True, slots=True, order=True)
class AclRule:
    """The rest of an ACL: a principal, a host, and what is allowed or denied."""

    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission


ALL_RESOURCES: Final = AclResource(AclResourceType.ANY, None, PatternType.ANY)


def list_rules(cluster: BlockingCluster, resources: Iterable[AclResource]) -> dict[AclResource, list[AclRule]]:
    """The ACLs that match any of the filters, by resource; all of them without a filter."""
    rules: dict[AclResource, list[AclRule]] = {}
    for resource in list(resources) or [ALL_RESOURCES]:
        wanted = AclFilter(resource.type, resource.name, pattern_type=resource.pattern)
        for binding in cluster.run(AccessAdmin(cluster).describe_acls(wanted)):
            owner = AclResource(binding.resource_type, binding.resource_name, binding.pattern_type)
            known = rules.setdefault(owner, [])
            rule = AclRule(binding.principal, binding.host, binding.operation, binding.permission)
            if rule not in known:
                known.append(rule)
    return rules


def add_rules(cluster: BlockingCluster, resource: AclResource, rules: Iterable[AclRule]) -> None:
    """Add ACLs to a resource; KlammError when one is refused."""
    bindings = [
        AclBinding(
            resource.type,
            resource.name or "",
            rule.principal,
            rule.operation,
            rule.permission,
            rule.host,
            resource.pattern,
        )
        for rule in rules
    ]
    cluster.run(AccessAdmin(cluster).create_acls(bindings))


def remove_rules(cluster: BlockingCluster, resource: AclResource, rules: Iterable[AclRule]) -> None:
    """Remove ACLs of the resources a filter matches, all of them without a rule; KlammError when refused."""
    everything = AclFilter(resource.type, resource.name, pattern_type=resource.pattern)
    filters = [
        everything._replace(
            principal=rule.principal, host=rule.host, operation=rule.operation, permission=rule.permission
        )
        for rule in rules
    ]
    cluster.run(AccessAdmin(cluster).delete_acls(filters or [everything]))
