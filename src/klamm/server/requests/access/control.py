"""The authorizer of a node: follows the ACLs of the metadata log, decides, writes audit lines."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import MetadataImage
from klamm.model.acls import AclOperation, AclResourceType
from klamm.protocol.apis import APIS
from klamm.security.core.acl import entry_from_record
from klamm.security.core.authorizer import StandardAuthorizer, Verdict
from klamm.security.core.principal import Principal
from klamm.telemetry.log import Level, get_logger

if TYPE_CHECKING:
    from klamm.net import Channel
    from klamm.server.requests.access.audit_topic import AuditTopic
    from klamm.server.requests.context import ConnectionState

audit_log = get_logger("kafka.authorizer.logger")

NAME_CHARS_MAX: Final = 256
"""Of the name of a resource in the audit: topics have at most 249, other names up to 32,767 bytes."""
_TYPE_NAMES: Final = {
    AclResourceType.TOPIC: "Topic",
    AclResourceType.GROUP: "Group",
    AclResourceType.CLUSTER: "Cluster",
    AclResourceType.TRANSACTIONAL_ID: "TransactionalId",
    AclResourceType.DELEGATION_TOKEN: "DelegationToken",
    AclResourceType.USER: "User",
}
"""Resource types in the spelling of Kafka's audit lines."""


class Requester(Protocol):
    """The sender of a request, or the client whose request it forwards."""

    api_key: int

    @property
    def principal(self) -> Principal:
        """The authenticated identity."""

    @property
    def client_host(self) -> str:
        """The address, as text."""


class AccessControl:
    """The authorizer of this node."""

    def __init__(self, authorizer: StandardAuthorizer, raft: "CommitProgress") -> None:
        self.authorizer = authorizer
        self._raft = raft
        self._connections: dict[int, ConnectionState] = {}
        """Connections whose Produce requests are recognised by their bytes; by the `id` of their state."""
        self.audit_topic: AuditTopic | None = None
        """Gets a record of each denial, if klamm.audit.topic is set."""

    # Entries

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Follow the ACLs of the metadata log."""
        if delta.acls_changed:
            self.authorizer.update(
                {
                    entry_id: None if record is None else entry_from_record(record)
                    for entry_id, record in delta.acls_changed.items()
                }
            )
            self._forget_prefixes()
        if not self.authorizer.ready:
            # An entry that is not read yet may be a DENY, so only super users pass before.
            # Before there is a leader, the high watermark is that of the last snapshot.
            loaded = image.provenance.offset + 1 >= self._raft.high_watermark
            self.authorizer.ready = loaded and self._raft.leader[0] is not None

    # The quick path of Produce

    def watch(self, connection: "ConnectionState") -> None:
        """Forget what the quick path of Produce has learned about a connection when the ACLs change."""
        key = id(connection)
        if key not in self._connections:
            self._connections[key] = connection

            def unwatch() -> None:
                self._connections.pop(key, None)

            connection.on_close.append(unwatch)

    def _forget_prefixes(self) -> None:
        # The quick path does not check rights: a known prefix is one whose request was allowed by the present ACLs.
        for connection in self._connections.values():
            connection.forget_prefixes()

    # Decisions

    @property
    def logs_allowed(self) -> bool:
        """Whether permissions write audit lines."""
        return audit_log.enabled(Level.DEBUG)

    def allows(
        self,
        client: Requester,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str,
        *,
        count: int = 1,
        log_denied: bool = True,
        log_allowed: bool = True,
    ) -> bool:
        """Whether a client may do something; `count` is how often the request names the resource.

        Filters and bit sets of operations write no audit lines: no access was requested.
        """
        principal, host = client.principal, client.client_host
        verdict = self.authorizer.authorize(principal, host, operation, resource_type, name)
        if verdict.allowed:
            if log_allowed and self.logs_allowed:
                audit_log.debug(_audit_line(client, operation, resource_type, name, count, verdict))
        elif log_denied:
            audit_log.info(_audit_line(client, operation, resource_type, name, count, verdict))
            if self.audit_topic is not None:
                self.audit_topic.add(_audit_fields(client, operation, resource_type, name, count, verdict))
        return verdict.allowed

    def allows_quietly(
        self, channel: "Channel", operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> bool:
        """Whether a quick path may serve a request; False leaves decision and audit line to the usual handler."""
        if self.logs_allowed:
            return False
        host = channel.peer_address[0]
        return self.authorizer.authorize(channel.principal, host, operation, resource_type, name).allowed

    def allows_any(self, client: Requester, operation: AclOperation, resource_type: AclResourceType) -> bool:
        """Whether there can be a resource of the type on which the client may do something."""
        return self.authorizer.authorize_any(client.principal, client.client_host, operation, resource_type)

    def operations(
        self, client: Requester, operations: Iterable[AclOperation], resource_type: AclResourceType, name: str
    ) -> int:
        """Return the allowed ones of `operations` as a bit set."""
        return self.authorizer.authorized_operations(
            client.principal, client.client_host, operations, resource_type, name
        )


class CommitProgress(Protocol):
    """The progress of the metadata log."""

    @property
    def high_watermark(self) -> int:
        """The high watermark of the metadata log."""

    @property
    def leader(self) -> tuple[int | None, int]:
        """The leader of the quorum and its epoch."""


def _audit_line(
    client: Requester, operation: AclOperation, resource_type: AclResourceType, name: str, count: int, verdict: Verdict
) -> str:
    """Kafka's audit line, which log collectors parse by its words."""
    api = APIS.get(client.api_key)
    return _escape(
        f"Principal = {client.principal} is {'Allowed' if verdict.allowed else 'Denied'} operation = {operation.name}"
        f" from host = {client.client_host} on resource = {_TYPE_NAMES[resource_type]}:LITERAL:{_cut(name)}"
        f" for request = {api.name if api is not None else client.api_key} with resourceRefCount = {count}"
        f" based on rule {verdict.rule}"
    )


def _audit_fields(
    client: Requester, operation: AclOperation, resource_type: AclResourceType, name: str, count: int, verdict: Verdict
) -> dict[str, Any]:
    """Return the fields of an audit line, for the audit topic."""
    api = APIS.get(client.api_key)
    return {
        "event": "denied",
        "principal": str(client.principal),
        "host": client.client_host,
        "operation": operation.name,
        "resource_type": _TYPE_NAMES[resource_type],
        "resource_name": name,
        "request": api.name if api is not None else str(client.api_key),
        "count": count,
        "rule": str(verdict.rule),
    }


def _cut(name: str) -> str:
    # A peer chooses the name, of up to 32 KB, and as many as a request can hold.
    return name if len(name) <= NAME_CHARS_MAX else f"{name[:NAME_CHARS_MAX]}...({len(name)} characters)"


def _escape(line: str) -> str:
    """Escape what is not printable: a newline in the name of a resource or a principal could forge an audit line."""
    if line.isprintable():
        return line
    # Each character once, however often it occurs: a request may name a thousand groups of newlines.
    odd = (character for character in set(line) if not character.isprintable())
    return line.translate({ord(character): character.encode("unicode_escape").decode() for character in odd})
