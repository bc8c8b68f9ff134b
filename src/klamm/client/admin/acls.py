"""ACLs, client quotas and SCRAM credentials."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from klamm.client.admin.acl_types import AclBinding, AclFilter, QuotaEntity, ScramCredential, ScramMechanism
from klamm.client.admin.base import AdminBase, Outcomes
from klamm.client.core.arguments import several, texts
from klamm.client.errors import raise_for
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from klamm.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from klamm.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from klamm.protocol.messages.describe_acls import DescribeAclsRequest
from klamm.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from klamm.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName

_EXACT, _DEFAULT, _ANY = 0, 1, 2


class AccessAdmin(AdminBase):
    """Requests about ACLs, quotas and SCRAM credentials."""

    async def describe_acls(self, filter: AclFilter | None = None) -> list[AclBinding]:
        """The rules that match, all of them without a filter."""
        response = await self._send(DescribeAclsRequest(**_matching(filter or AclFilter())))
        return sorted(
            _binding(resource.resource_type, resource.resource_name, resource.pattern_type, acl)
            for resource in response.resources
            for acl in resource.acls
        )

    async def create_acls(self, rules: Iterable[AclBinding]) -> None:
        """Add rules; one that exists already is fine."""
        wanted = several(rules, AclBinding, "create_acls", "AclBinding(...)")
        if not wanted:
            return
        request = CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=rule.resource_type,
                    resource_name=rule.resource_name,
                    resource_pattern_type=rule.pattern_type,
                    principal=rule.principal,
                    host=rule.host,
                    operation=rule.operation,
                    permission_type=rule.permission,
                )
                for rule in wanted
            ]
        )

        def read(response: Any, outcomes: Outcomes) -> None:
            for rule, result in zip(wanted, response.results, strict=True):
                outcomes.add(rule, result.error_code, result.error_message)

        await self._send_for_items(request, read)

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[AclBinding]:
        """Remove every rule that matches one of the filters; returns those removed."""
        wanted = several(filters, AclFilter, "delete_acls", "AclFilter(...)")
        if not wanted:
            return []
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_matching(rule)) for rule in wanted])

        def read(response: Any, outcomes: Outcomes) -> None:
            for rule, result in zip(wanted, response.filter_results, strict=True):
                outcomes.add(rule, result.error_code, result.error_message, [])
                for acl in result.matching_acls:
                    removed = _binding(acl.resource_type, acl.resource_name, acl.pattern_type, acl)
                    outcomes.add(removed, acl.error_code, acl.error_message, [removed])

        removals = await self._send_for_items(request, read)
        return sorted({binding for removed in removals.values() for binding in removed})

    async def describe_client_quotas(
        self, match: Mapping[str, str | None] | None = None, *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Limits of entities: kind to a name, None for the default, "*" for any; all of them without."""
        components = [
            ComponentData(
                entity_type=kind,
                match_type=_DEFAULT if name is None else _ANY if name == "*" else _EXACT,
                match=None if name in (None, "*") else name,
            )
            for kind, name in (match or {}).items()
        ]
        response = await self._send(DescribeClientQuotasRequest(components=components, strict=strict))
        return {
            tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)): {
                value.key: value.value for value in entry.values
            }
            for entry in response.entries or ()
        }

    async def alter_client_quotas(
        self, changes: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> None:
        """Set limits of entities; None takes one away."""
        request = AlterClientQuotasRequest(
            entries=[
                EntryData(
                    entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                    ops=[
                        OpData(key=key, value=_limit(key, value), remove=value is None) for key, value in limits.items()
                    ],
                )
                for entity, limits in changes.items()
            ],
            validate_only=validate_only,
        )

        def read(response: Any, outcomes: Outcomes) -> None:
            for entry in response.entries:
                entity = tuple((part.entity_type, part.entity_name) for part in entry.entity)
                outcomes.add(entity, entry.error_code, entry.error_message)

        await self._send_for_items(request, read)

    async def describe_user_scram_credentials(
        self, users: Sequence[str] | None = None
    ) -> dict[str, list[ScramCredential]]:
        """The mechanisms of users, the smaller first; without names, only users that have any."""
        names = (
            None if users is None else [UserName(name=text) for text in texts(users, "describe_user_scram_credentials")]
        )
        response = await self._send(DescribeUserScramCredentialsRequest(users=names))
        credentials: dict[str, list[ScramCredential]] = {}
        for result in response.results:
            if result.error_code != ErrorCode.RESOURCE_NOT_FOUND:
                raise_for(result.error_code, result.error_message)
            credentials[result.user] = [
                ScramCredential(ScramMechanism(info.mechanism), info.iterations)
                for info in sorted(result.credential_infos, key=attrgetter("mechanism"))  # brokers keep no order
            ]
        return credentials

    async def alter_user_scram_credentials(
        self,
        set_passwords: Mapping[tuple[str, ScramMechanism], str] | None = None,
        delete: Iterable[tuple[str, ScramMechanism]] = (),
        *,
        iterations: int = 4096,
    ) -> None:
        """Give users passwords, by (user, mechanism), or take them away; only the salted form leaves this process."""
        unwanted = _users(delete)
        upsertions = []
        for (user, mechanism), password in (set_passwords or {}).items():
            salt = secrets.token_bytes(24)
            algorithm = "sha256" if mechanism is ScramMechanism.SCRAM_SHA_256 else "sha512"
            salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)
            upsertions.append(
                ScramCredentialUpsertion(
                    name=user, mechanism=int(mechanism), iterations=iterations, salt=salt, salted_password=salted
                )
            )
        request = AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name=user, mechanism=int(mechanism)) for user, mechanism in unwanted],
            upsertions=upsertions,
        )

        def read(response: Any, outcomes: Outcomes) -> None:
            for result in response.results:
                outcomes.add(result.user, result.error_code, result.error_message)

        await self._send_for_items(request, read)


def _users(given: Any) -> list[tuple[str, ScramMechanism]]:
    users = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for user in users:
        if not isinstance(user, tuple) or len(user) != 2 or not isinstance(user[0], str):
            example = '[("alice", ScramMechanism.SCRAM_SHA_256)]'
            raise TypeError(f"alter_user_scram_credentials, delete: write {example}; {user!r} is no user and mechanism")
    return users


def _limit(name: str, value: float | None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise TypeError(f"{name}={value!r} is no limit: write a number, or None to take it away")
    return float(value or 0.0)


def _matching(filter: AclFilter) -> dict[str, Any]:
    """A filter as fields of DescribeAcls and DeleteAcls, which have the same names."""
    return {
        "resource_type_filter": filter.resource_type,
        "resource_name_filter": filter.resource_name,
        "pattern_type_filter": filter.pattern_type,
        "principal_filter": filter.principal,
        "host_filter": filter.host,
        "operation": filter.operation,
        "permission_type": filter.permission,
    }


def _binding(resource_type: int, name: str, pattern: int, rule: Any) -> AclBinding:
    return AclBinding(
        AclResourceType(resource_type),
        name,
        rule.principal,
        AclOperation(rule.operation),
        AclPermission(rule.permission_type),
        rule.host,
        PatternType(pattern),
    )
