"""Who may do what with a subject: permissions of a file, or the ACLs of the cluster.

| operation | in a file | ACL of the topic that the subject is named after |
|---|---|---|
| READ      | Read on `Subject:NAME`  | DESCRIBE, which READ and WRITE imply: consumers and producers read schemas |
| WRITE     | Write on `Subject:NAME` | WRITE |
| DELETE    | Write on `Subject:NAME` | DELETE |
| CONFIGURE | Write on `Subject:NAME` | ALTER_CONFIGS |

The config and the mode of the whole registry are the resource `Config:` in a file. With ACLs, every principal that is
logged in reads them, and ALTER_CONFIGS on the cluster changes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, Protocol

from klamm.client.admin.acl_types import AclBinding
from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.config import ADMIN_CONFIGS
from klamm.client.errors import KafkaError
from klamm.http.authfile import READ, WRITE
from klamm.http.login import WatchedAuthFile
from klamm.model.acls import AclOperation, AclResourceType
from klamm.model.errors import ConfigError, ErrorCode
from klamm.model.ids import Uuid
from klamm.registry.store.subjects import Subject
from klamm.security.core.acl import CLUSTER_NAME, AccessControlEntry
from klamm.security.core.authorizer import StandardAuthorizer
from klamm.security.core.principal import Principal
from klamm.telemetry import get_logger

_log = get_logger("registry")

ACL_REFRESH_S: Final = 5.0
"""A changed ACL counts after so long."""


class SubjectOperation(Enum):
    """What is done with a subject, or with the registry as a whole."""

    READ = AclOperation.DESCRIBE
    WRITE = AclOperation.WRITE
    DELETE = AclOperation.DELETE
    CONFIGURE = AclOperation.ALTER_CONFIGS


class SubjectRights(Protocol):
    """Decides by principal."""

    async def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End."""

    def allows(self, principal: Principal, host: str, operation: SubjectOperation, subject: Subject | None) -> bool:
        """Whether a principal may do it; None is the registry as a whole."""


class FileRights:
    """Permissions of a file, which may change while the registry runs."""

    def __init__(self, file: WatchedAuthFile) -> None:
        self._file = file

    async def start(self) -> None:
        """Do nothing: the file is read already."""

    async def stop(self) -> None:
        """Do nothing."""

    def allows(self, principal: Principal, host: str, operation: SubjectOperation, subject: Subject | None) -> bool:  # noqa: ARG002 - permissions name no hosts
        """Whether a permission of the file is for it."""
        resource = "Config:" if subject is None else f"Subject:{subject}"
        name = READ if operation is SubjectOperation.READ else WRITE
        return self._file.current().allows(principal.name, name, resource)


class AclRights:
    """The ACLs of the cluster, read again every few seconds."""

    def __init__(self, client: Mapping[str, Any], super_users: Iterable[str] = ()) -> None:
        self._client = {name: value for name, value in client.items() if name in ADMIN_CONFIGS}
        self._super_users = frozenset(super_users)
        self._bindings: frozenset[AclBinding] = frozenset()
        self._authorizer = StandardAuthorizer(super_users=self._super_users)
        self._admin: AsyncAdmin | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the ACLs; ConfigError when the cluster has none, or hides them from this principal."""
        self._admin = AsyncAdmin(self._client)
        await self._admin.start()
        try:
            self.use(await self._admin.describe_acls())
        except KafkaError as error:
            if error.code == ErrorCode.SECURITY_DISABLED:
                raise ConfigError(
                    "the cluster has no authorizer, so it has no ACLs; write --authorizer file with permissions in the"
                    " authfile, or --authorizer none to let every login do everything"
                ) from None
            if error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise ConfigError("reading ACLs needs DESCRIBE on the cluster, which this principal lacks") from None
            raise
        self._reader = asyncio.create_task(self._refresh(), name="klamm registry acls")

    async def stop(self) -> None:
        """Read no more."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._admin is not None:
            await self._admin.close()

    async def _refresh(self) -> None:
        assert self._admin is not None
        while True:
            await asyncio.sleep(ACL_REFRESH_S)
            try:
                self.use(await self._admin.describe_acls())
            except (KafkaError, OSError) as error:
                # The old ones stay in force: an outage of the cluster must not open or close the registry.
                _log.warning("ACLs not read", error=error)

    def use(self, bindings: Iterable[AclBinding]) -> None:
        """Decide by these ACLs from now on."""
        changed = frozenset(bindings)
        if changed == self._bindings:
            return
        self._bindings = changed
        authorizer = StandardAuthorizer(super_users=self._super_users)
        # The ids are for removals, which are not needed here.
        authorizer.update({Uuid(number.to_bytes(16, "big")): _entry(acl) for number, acl in enumerate(changed, 1)})
        self._authorizer = authorizer
        _log.info("ACLs read", count=len(changed))

    def allows(self, principal: Principal, host: str, operation: SubjectOperation, subject: Subject | None) -> bool:
        """Whether the ACLs allow it; a DENY wins."""
        if subject is None:
            if operation is SubjectOperation.READ:
                return True
            resource_type, name = AclResourceType.CLUSTER, CLUSTER_NAME
        else:
            resource_type, name = AclResourceType.TOPIC, topic_of(subject)
        return self._authorizer.authorize(principal, host, operation.value, resource_type, name).allowed


def topic_of(subject: Subject) -> str:
    """Return the topic whose ACLs count for a subject: its name without -key or -value.

    A subject of another naming strategy counts as a topic of its own name, and one of a context has the context in
    front, so that the right to a topic is no right to subjects of the same name in contexts.
    """
    text = str(subject)
    for suffix in ("-value", "-key"):
        if text.endswith(suffix):
            return text[: -len(suffix)]
    return text


def _entry(acl: AclBinding) -> AccessControlEntry:
    return AccessControlEntry(
        acl.resource_type, acl.resource_name, acl.pattern_type, acl.principal, acl.host, acl.operation, acl.permission
    )
