"""Checks of `klamm acl add`: Kafka stores ACLs that no request can match, and they look like rights."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from klamm.cli import exit_codes
from klamm.cli.command_errors import CommandRefusal
from klamm.model.acls import AclOperation, AclResourceType, PatternType
from klamm.model.topic_names import name_complaint

if TYPE_CHECKING:
    from klamm.client.admin.acl_types import AclBinding

_WILDCARD = "*"


def check_bindings(
    bindings: Iterable[AclBinding], operations_of: Mapping[AclResourceType, Sequence[AclOperation]]
) -> list[str]:
    """Refuse ACLs that never match; return warnings of those that match in unusual cases only."""
    warnings: dict[str, None] = {}
    for binding in bindings:
        _check_host(binding.host)
        _check_operation(binding, operations_of[binding.resource_type])
        warnings |= dict.fromkeys((*_check_principal(binding.principal), *_check_name(binding)))
    return list(warnings)


def _check_principal(principal: str) -> Iterable[str]:
    kind, _, name = principal.partition(":")
    if not name:
        raise _refusal(f"{principal!r} has no name; write User:NAME")
    if kind == "User":
        return ()
    # Principals are compared letter by letter.
    if kind.lower() == "user":
        raise _refusal(f"{principal} matches no client: the type is written User; write User:{name}")
    return (
        f"{principal} matches only if the brokers have a principal builder for the type {kind}; users are User:NAME",
    )


def _check_host(host: str) -> None:
    if host == _WILDCARD:
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise _refusal(
            f"--host {host} matches no client: it is compared with the client's address; write one IP address,"
            " without a range or a name, or leave it out for all"
        ) from None


def _check_operation(binding: AclBinding, operations: Sequence[AclOperation]) -> None:
    if binding.operation in (AclOperation.ALL, *operations):
        return
    kind = binding.resource_type.name.lower().replace("_", "-")
    known = ", ".join(operation.name.lower().replace("_", "-") for operation in operations)
    raise _refusal(f"{kind} has no operation {binding.operation.name.lower()}; write {known} or all")


def _check_name(binding: AclBinding) -> Iterable[str]:
    name = binding.resource_name
    prefix = name.rstrip(_WILDCARD)
    if name == _WILDCARD:
        return ()
    is_topic = binding.resource_type is AclResourceType.TOPIC
    if prefix != name:
        advice = (
            f"{name!r} is taken letter by letter; for all names that begin with {prefix!r} write it with --prefixed"
        )
        if is_topic:
            raise _refusal(f"topic:{advice}: topic:{prefix} --prefixed")
        return (advice,)
    if is_topic:
        # As a prefix, "." begins names that are valid.
        complaint = name_complaint(f"{name}a" if binding.pattern_type is PatternType.PREFIXED else name)
        if complaint:
            raise _refusal(f"topic:{name} matches no topic: {complaint}")
    return ()


def _refusal(text: str) -> CommandRefusal:
    return CommandRefusal(text, code=exit_codes.USAGE)
