"""`klamm acl`: who may do what, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from klamm.cli.acl_checks import check_bindings
from klamm.cli.command_errors import refuses
from klamm.cli.command_group import Noun
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import output_option, show, show_one
from klamm.cli.target import Target, cluster_options
from klamm.model.acls import RESOURCE_OPERATIONS, AclOperation, AclPermission, AclResourceType, PatternType

if TYPE_CHECKING:
    from klamm.client.admin.acl_types import AclBinding, AclFilter
    from klamm.client.blocking_cluster import BlockingCluster
    from klamm.client.core.rights import PatternRights

COLUMNS: Final = ("permission", "principal", "operation", "resource", "pattern", "host")
_TYPES: Final = {
    "topic": AclResourceType.TOPIC,
    "group": AclResourceType.GROUP,
    "cluster": AclResourceType.CLUSTER,
    "transactional-id": AclResourceType.TRANSACTIONAL_ID,
    "delegation-token": AclResourceType.DELEGATION_TOKEN,
    "user": AclResourceType.USER,
}
_TYPE_WORDS: Final = {resource_type: word for word, resource_type in _TYPES.items()}
_OPERATIONS: Final = {operation.name.lower().replace("_", "-"): operation for operation in AclOperation}
_RESOURCE_HELP: Final = "cluster, or TYPE:NAME with topic, group, transactional-id, delegation-token or user."
_CLUSTER_NAME: Final = "kafka-cluster"
_NO_SUPER_USERS: Final = "super.users is not considered"
"""Brokers hide the value of super.users, as Kafka's do, so commands cannot decide by it."""


@click.group(cls=Noun)
def acl() -> None:
    """Show and change who may do what."""


def _read_principal(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """A principal; a bare name is a user."""
    if value is None or ":" in value:
        return value
    return f"User:{value}"


def _read_resource(_: click.Context, __: click.Parameter, value: str | None) -> tuple[AclResourceType, str] | None:
    if value is None:
        return None
    word, _colon, name = value.partition(":")
    if word == "cluster" and name in ("", _CLUSTER_NAME):
        return AclResourceType.CLUSTER, _CLUSTER_NAME
    if word not in _TYPES or word == "cluster" or not name:
        raise click.BadParameter(f"{value!r}: write {_RESOURCE_HELP}")
    return _TYPES[word], name


def _read_operations(_: click.Context, __: click.Parameter, value: str | None) -> tuple[AclOperation, ...]:
    operations = []
    for word in (value or "").split(","):
        operation = _OPERATIONS.get(word.strip().lower().replace("_", "-"))
        if value is None:
            continue
        if operation is None or operation in (AclOperation.UNKNOWN, AclOperation.ANY):
            known = ", ".join(name for name in _OPERATIONS if name not in ("unknown", "any"))
            raise click.BadParameter(f"{word!r} is no operation: write {known}")
        operations.append(operation)
    return tuple(operations)


_principal = click.argument("principal", callback=_read_principal)
_operations = click.argument("operations", metavar="OPERATION[,...]", callback=_read_operations)
_resource = click.argument("resource", metavar="RESOURCE", callback=_read_resource)
_prefixed = click.option("--prefixed", is_flag=True, help="RESOURCE names a prefix: all names that begin with it.")
_host = click.option("--host", default="*", show_default=True, help="The client's address.")


@acl.command("ls")
@click.option("--principal", callback=_read_principal, help="Only those of this principal.")
@click.option("--resource", callback=_read_resource, metavar="RESOURCE", help="Only those that apply to it.")
@cluster_options
@output_option
@refuses
def ls(*, principal: str | None, resource: tuple[AclResourceType, str] | None, target: Target, output: str) -> None:
    """List ACLs."""
    with target.cluster() as cluster:
        bindings = _describe(cluster, _filter(principal, resource, PatternType.MATCH))
    show([_row(binding) for binding in bindings], output, empty="no ACLs", columns=COLUMNS)


@acl.command("add")
@_principal
@_operations
@_resource
@_prefixed
@_host
@click.option("--deny", is_flag=True, help="Deny instead of allow; a denial comes before every permission.")
@consent_options
@cluster_options
@refuses
def add(
    *,
    principal: str,
    operations: tuple[AclOperation, ...],
    resource: tuple[AclResourceType, str],
    prefixed: bool,
    host: str,
    deny: bool,
    consent: Consent,
    target: Target,
) -> None:
    """Allow a principal operations on a resource: klamm acl add alice read topic:orders."""
    from klamm.client.admin.acl_types import AclBinding
    from klamm.client.admin.acls import AccessAdmin

    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    permission = AclPermission.DENY if deny else AclPermission.ALLOW
    wanted = [
        AclBinding(resource[0], resource[1], principal, operation, permission, host, pattern)
        for operation in operations
    ]
    for warning in check_bindings(wanted, RESOURCE_OPERATIONS):
        click.echo(f"Warning: {warning}.", err=True)
    with target.cluster() as cluster:
        present = set(_describe(cluster, _filter(principal, resource, pattern)))
        missing = [binding for binding in dict.fromkeys(wanted) if binding not in present]
        plan = ConfirmationPlan()
        for binding in missing:
            plan.adds(_sentence(binding))
        if not consent.to(plan, target):
            return
        cluster.run(AccessAdmin(cluster).create_acls(missing))
    for binding in missing:
        click.echo(f"Added: {_sentence(binding)}.")


@acl.command("rm")
@_principal
@click.argument("operations", metavar="[OPERATION[,...]]", required=False, callback=_read_operations)
@click.argument("resource", metavar="[RESOURCE]", required=False, callback=_read_resource)
@_prefixed
@click.option("--host", metavar="ADDRESS", help="Only ACLs of this address, * for those of any; by default all.")
@click.option("--deny", is_flag=True, help="Remove ACLs that deny, not those that allow.")
@consent_options
@cluster_options
@refuses
def rm(
    *,
    principal: str,
    operations: tuple[AclOperation, ...],
    resource: tuple[AclResourceType, str] | None,
    prefixed: bool,
    host: str | None,
    deny: bool,
    consent: Consent,
    target: Target,
) -> None:
    """Remove ACLs that allow a principal something; all of them without OPERATION and RESOURCE.

    Denials stay, since without them other ACLs could allow more than before; --deny removes denials, and nothing else.
    """
    from klamm.client.admin.acl_types import AclFilter
    from klamm.client.admin.acls import AccessAdmin

    pattern = PatternType.ANY if resource is None else PatternType.PREFIXED if prefixed else PatternType.LITERAL
    with target.cluster() as cluster:
        present = _describe(cluster, _filter(principal, resource, pattern))
        matching = [
            binding
            for binding in present
            if (not operations or binding.operation in operations) and host in (None, binding.host)
        ]
        # One permission at a time: a denial that goes with an allowance could open what another rule allows.
        permission = AclPermission.DENY if deny else AclPermission.ALLOW
        unwanted = [binding for binding in matching if binding.permission is permission]
        if not deny and (kept := len(matching) - len(unwanted)):
            click.echo(f"{kept} {'denial stays' if kept == 1 else 'denials stay'}; --deny removes denials.", err=True)
        plan = ConfirmationPlan()
        for binding in unwanted:
            plan.removes(_sentence(binding))
        if not consent.to(plan, target):
            return
        # Exactly what the plan has shown, not what matches by now.
        exact = [
            AclFilter(
                binding.resource_type,
                binding.resource_name,
                binding.principal,
                binding.operation,
                binding.permission,
                binding.host,
                binding.pattern_type,
            )
            for binding in unwanted
        ]
        removed = cluster.run(AccessAdmin(cluster).delete_acls(exact))
    for binding in removed:
        click.echo(f"Removed: {_sentence(binding)}.")


@acl.command("can")
@_principal
@_host
@cluster_options
@output_option
@refuses
def can(*, principal: str, host: str, target: Target, output: str) -> None:
    """Show what a principal may do: every pattern that its ACLs, or those of User:*, name, with what is allowed there.

    Super users may do everything, whatever the ACLs; brokers do not show super.users, so it is not considered.
    """
    from klamm.client.core.rights import list_rights
    from klamm.security.core.principal import parse_principal

    with target.cluster() as cluster:
        bindings = _describe(cluster, None)
    rights = list_rights(bindings, parse_principal(principal), host)
    rows = [
        {
            "resource": f"{_TYPE_WORDS[right.resource_type]}:{right.name}",
            "pattern": right.pattern_type.name.lower(),
            "operations": _list_operations(right.allowed),
            "denied": "; ".join(_list_exceptions(right, rights)),
        }
        for right in rights
        if right.allowed and right.host == host
    ]
    nothing = f"no ACL allows {principal} anything; {_NO_SUPER_USERS}"
    show(rows, output, empty=nothing, columns=("resource", "pattern", "operations", "denied"))
    # Programs read an empty list as "may do nothing".
    if not rows and output != "table":
        click.echo(nothing, err=True)


def _list_exceptions(right: PatternRights, rights: Iterable[PatternRights]) -> Iterable[str]:
    """Return what is allowed from any host and denied from one, a text for each such host."""
    for other in rights:
        denied = [operation for operation in other.denied if operation in right.allowed]
        if denied and other[:3] == right[:3]:
            yield f"{_list_operations(denied)} from {other.host}"


def _list_operations(operations: Iterable[AclOperation]) -> str:
    return ",".join(operation.name.lower() for operation in operations)


@acl.command("why")
@_principal
@_operations
@_resource
@_host
@cluster_options
@output_option
@refuses
def why(
    *,
    principal: str,
    operations: tuple[AclOperation, ...],
    resource: tuple[AclResourceType, str],
    host: str,
    target: Target,
    output: str,
) -> None:
    """Show which ACL decides whether a principal may do something.

    Super users may do everything, whatever the ACLs; brokers do not show super.users, so it is not considered.
    """
    from klamm.client.core.rights import explain_operations
    from klamm.security.core.principal import parse_principal

    if len(operations) != 1:
        raise click.UsageError("why explains one operation")
    with target.cluster() as cluster:
        bindings = _describe(cluster, _filter(None, resource, PatternType.MATCH))
    (verdict,) = explain_operations(bindings, parse_principal(principal), operations, *resource, host)
    if verdict.entry is not None:
        from klamm.client.admin.acl_types import AclBinding

        entry = verdict.entry
        reason = _sentence(
            AclBinding(
                entry.resource_type,
                entry.resource_name,
                entry.principal,
                entry.operation,
                entry.permission,
                entry.host,
                entry.pattern_type,
            )
        )
    elif bindings:
        reason = "no ACL of the resource allows it"
    else:
        reason = "the resource has no ACLs: allowed only with allow.everyone.if.no.acl.found=true"
    word = "allowed" if verdict.allowed else "denied"
    operation, name = operations[0].name.lower(), f"{_TYPE_WORDS[resource[0]]}:{resource[1]}"
    facts = {
        "principal": principal,
        "operation": operation,
        "resource": name,
        "host": host,
        "decision": word,
        "reason": reason,
        "denied_from": list(verdict.denied_hosts),
        "note": None if verdict.allowed else _NO_SUPER_USERS,
    }

    def table() -> None:
        decision = f"{word}{verdict.exception};" if verdict.denied_hosts else f"{word},"
        note = "" if verdict.allowed else f" ({_NO_SUPER_USERS})"
        click.echo(f"{principal} {operation} {name}: {decision} {reason}{note}")

    show_one(facts, output, table)


def _describe(cluster: BlockingCluster, wanted: AclFilter | None) -> list[AclBinding]:
    from klamm.client.admin.acls import AccessAdmin

    return cluster.run(AccessAdmin(cluster).describe_acls(wanted))


def _filter(principal: str | None, resource: tuple[AclResourceType, str] | None, pattern: PatternType) -> AclFilter:
    from klamm.client.admin.acl_types import AclFilter

    if resource is None:
        return AclFilter(principal=principal)
    return AclFilter(resource[0], resource[1], principal, pattern_type=pattern)


def _row(binding: AclBinding) -> dict[str, Any]:
    return {
        "permission": binding.permission.name.lower(),
        "principal": binding.principal,
        "operation": binding.operation.name.lower(),
        "resource": f"{_TYPE_WORDS[binding.resource_type]}:{binding.resource_name}",
        "pattern": binding.pattern_type.name.lower(),
        "host": binding.host,
    }


def _sentence(binding: AclBinding) -> str:
    row = _row(binding)
    pattern = " (prefix)" if binding.pattern_type is PatternType.PREFIXED else ""
    host = "" if binding.host == "*" else f" from {binding.host}"
    return f"{row['permission']} {row['principal']} {row['operation']} {row['resource']}{pattern}{host}"
