"""What a principal may do by the ACLs of a cluster, decided as its brokers decide.

Brokers hide the value of super.users, as Kafka's do: a super user may do everything, and is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.model.acls import RESOURCE_OPERATIONS, AclOperation, AclPermission, AclResourceType, PatternType
from klamm.model.ids import Uuid
from klamm.security.core.acl import WILDCARD, WILDCARD_PRINCIPAL, AccessControlEntry
from klamm.security.core.authorizer import StandardAuthorizer, Verdict
from klamm.security.core.principal import Principal

if TYPE_CHECKING:
    from klamm.client.admin.acl_types import AclBinding

HOSTS_MAX: Final = 50
"""Hosts of rules for which rights are listed apart."""
_HOSTS_NAMED: Final = 5
"""Hosts that a text names; of more it has the number."""


class PatternRights(NamedTuple):
    """What a principal may do with all resources of a pattern, from a host; `host` is * for any."""

    resource_type: AclResourceType
    pattern_type: PatternType
    name: str
    host: str
    allowed: tuple[AclOperation, ...]
    denied: tuple[AclOperation, ...]
    """Those that a DENY forbids; all others are not allowed by any rule."""


class OperationVerdict(NamedTuple):
    """Whether one operation is allowed, and the rule that decides; None when no rule does."""

    operation: AclOperation
    allowed: bool
    entry: AccessControlEntry | None
    denied_hosts: tuple[str, ...] = ()
    """Hosts from which a DENY forbids what is allowed; only for an operation that is allowed from any host."""

    @property
    def exception(self) -> str:
        """What to add to "allowed" for the hosts that are denied; empty without any."""
        if not self.denied_hosts:
            return ""
        more = len(self.denied_hosts) - _HOSTS_NAMED
        return f", but denied from {', '.join(self.denied_hosts[:_HOSTS_NAMED])}{f' and {more} more' * (more > 0)}"


def load_rules(bindings: Iterable[AclBinding]) -> StandardAuthorizer:
    """Return an authorizer with these ACLs, which decides as those of the nodes do."""
    authorizer = StandardAuthorizer()
    authorizer.update(
        {
            Uuid(number.to_bytes(16)): AccessControlEntry(
                binding.resource_type,
                binding.resource_name,
                binding.pattern_type,
                binding.principal,
                binding.host,
                binding.operation,
                binding.permission,
            )
            for number, binding in enumerate(bindings)
        }
    )
    return authorizer


def list_rights(bindings: Sequence[AclBinding], principal: Principal, host: str = WILDCARD) -> list[PatternRights]:
    """Return the rights in every pattern that a rule of the principal, or of User:*, names.

    With a host of * rules of single hosts are left out; where they change something there is an entry of that host.
    """
    authorizer = load_rules(bindings)
    own = [binding for binding in bindings if binding.principal in (str(principal), WILDCARD_PRINCIPAL)]
    patterns = dict.fromkeys((binding.resource_type, binding.pattern_type, binding.resource_name) for binding in own)
    hosts = _list_hosts(own)[:HOSTS_MAX] if host == WILDCARD else []
    rights = []
    for resource_type, pattern_type, name in patterns:
        whole = None
        for place in (host, *hosts):
            verdicts = [
                (operation, authorizer.decide(principal, place, operation, resource_type, name))
                for operation in RESOURCE_OPERATIONS[resource_type]
            ]
            allowed = tuple(operation for operation, verdict in verdicts if verdict.allowed)
            denied = tuple(operation for operation, verdict in verdicts if _is_denied(verdict))
            if (allowed, denied) == whole:
                continue
            if place == host:
                whole = allowed, denied
            if allowed or denied or place != host:
                rights.append(PatternRights(resource_type, pattern_type, name, place, allowed, denied))
    return rights


def explain_rights(
    bindings: Sequence[AclBinding],
    principal: Principal,
    resource_type: AclResourceType,
    name: str,
    host: str = WILDCARD,
) -> list[OperationVerdict]:
    """Return for each operation on one resource whether it is allowed, and by which rule."""
    return explain_operations(bindings, principal, RESOURCE_OPERATIONS[resource_type], resource_type, name, host)


def explain_operations(
    bindings: Sequence[AclBinding],
    principal: Principal,
    operations: Iterable[AclOperation],
    resource_type: AclResourceType,
    name: str,
    host: str = WILDCARD,
) -> list[OperationVerdict]:
    """Return for each of these operations whether it is allowed, by which rule, and from which hosts it is denied."""
    authorizer = load_rules(bindings)
    denials = [
        binding
        for binding in bindings
        if binding.permission is AclPermission.DENY
        and binding.resource_type is resource_type
        and binding.principal in (str(principal), WILDCARD_PRINCIPAL)
    ]
    verdicts = []
    for operation in operations:
        verdict = authorizer.decide(principal, host, operation, resource_type, name)
        denied_hosts: tuple[str, ...] = ()
        if verdict.allowed and host == WILDCARD:
            # A denial of an operation denies no other, so rules of other operations need no decision.
            hosts = _list_hosts(binding for binding in denials if binding.operation in (operation, AclOperation.ALL))
            denied_hosts = tuple(
                place
                for place in hosts
                if _is_denied(authorizer.decide(principal, place, operation, resource_type, name))
            )
        verdicts.append(OperationVerdict(operation, verdict.allowed, verdict.entry, denied_hosts))
    return verdicts


def _list_hosts(bindings: Iterable[AclBinding]) -> list[str]:
    """Return the hosts of rules but *; those with a DENY first, since a limit must not hide them."""
    denying: dict[str, bool] = {}
    for binding in bindings:
        if binding.host != WILDCARD:
            denying[binding.host] = denying.get(binding.host, False) or binding.permission is AclPermission.DENY
    return sorted(denying, key=lambda host: (not denying[host], host))


def _is_denied(verdict: Verdict) -> bool:
    return verdict.entry is not None and verdict.entry.permission is AclPermission.DENY
