"""Who may do what, by a model that shares no code with the authorizer, and whether nodes decide by it.

The model follows the committed metadata log: it holds the ACLs and the credentials as of every offset. A node that has
applied the log up to an offset must decide by the state of that offset. A request travels while its node may apply
more, so a decision is right if any state between sending and answer explains it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.metadata.records import decode_record
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.protocol.messages import metadata_records as r
from klamm.security.core.principal import Principal
from simulation.cluster import Machine
from simulation.users import ADMIN, GUESTS, LOAD

if TYPE_CHECKING:
    from simulation.run import Run

VAULT = "vault"
"""The topic that guests may use or not."""
OPERATIONS = (AclOperation.WRITE, AclOperation.READ, AclOperation.DESCRIBE)
"""What guests try."""
_DESCRIBING = frozenset({AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER})


class TopicAcl(NamedTuple):
    """One ACL on topics."""

    name: str
    prefixed: bool
    principal: str
    host: str
    operation: AclOperation
    denies: bool

    def __str__(self) -> str:
        verb = "deny" if self.denies else "allow"
        kind = "topics that begin with " if self.prefixed else "topic "
        return f"{verb} {self.principal} from {self.host} {self.operation.name} on {kind}{self.name}"


class AppliedMetadata(NamedTuple):
    """How far the process on a machine has applied the metadata log."""

    process: object
    offset: int


TopicAcls = frozenset[TopicAcl]


def allows(entries: Iterable[TopicAcl], user: str, host: str, operation: AclOperation, topic: str) -> bool:
    """Whether entries allow a user an operation on a topic: any DENY refuses, else any ALLOW permits."""
    principal = f"User:{user}"
    allowed = False
    for entry in entries:
        covers = topic.startswith(entry.name) if entry.prefixed else entry.name in (topic, "*")
        if not covers or entry.principal not in (principal, "User:*") or entry.host not in (host, "*"):
            continue
        same = entry.operation in (operation, AclOperation.ALL)
        if entry.denies:
            if same:
                return False
        elif same or (operation is AclOperation.DESCRIBE and entry.operation in _DESCRIBING):
            allowed = True
    return allowed


class RightsModel:
    """The rights and credentials as of every offset of the metadata log."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self.violate = violate
        self.checked = 0
        """Decisions that were compared with the model."""
        self._offset = -1
        self._by_id: dict[bytes, TopicAcl] = {}
        self._acls: list[tuple[int, TopicAcls]] = [(-1, frozenset())]
        self._keys: dict[str, list[tuple[int, bytes | None]]] = {user: [(-1, None)] for user in (ADMIN, LOAD, *GUESTS)}
        """By user: the stored key of its password from an offset on."""
        self.passwords: dict[tuple[str, str], set[bytes]] = {}
        """(user, password) -> stored keys that were made of it."""

    # --- the log -----------------------------------------------------------------------------------------------------

    def follow(self, first_offset: int, values: list[bytes]) -> None:
        """A node applies records; those that another one has applied before are known."""
        for offset, value in enumerate(values, first_offset):
            if offset > self._offset:
                self._offset = offset
                self._replay(offset, decode_record(value))

    def _replay(self, offset: int, record: Any) -> None:
        match record:
            case r.AccessControlEntryRecord() if record.resource_type == AclResourceType.TOPIC:
                self._by_id[bytes(record.id)] = TopicAcl(
                    record.resource_name,
                    record.pattern_type == PatternType.PREFIXED,
                    record.principal,
                    record.host,
                    AclOperation(record.operation),
                    record.permission_type == AclPermission.DENY,
                )
                self._acls.append((offset, frozenset(self._by_id.values())))
            case r.RemoveAccessControlEntryRecord():
                self._by_id.pop(bytes(record.id), None)
                self._acls.append((offset, frozenset(self._by_id.values())))
            case r.UserScramCredentialRecord():
                self._keys[record.name].append((offset, bytes(record.stored_key)))
            case r.RemoveUserScramCredentialRecord():
                self._keys[record.name].append((offset, None))

    @property
    def entries(self) -> TopicAcls:
        """The ACLs that were committed last."""
        return self._acls[-1][1]

    @property
    def last_change(self) -> int:
        """The offset of the last change of ACLs."""
        return self._acls[-1][0]

    def stored_key(self, user: str) -> bytes | None:
        """What was committed last as the credential of a user."""
        return self._keys[user][-1][1]

    # --- decisions ---------------------------------------------------------------------------------------------------

    def check_decision(
        self, before: AppliedMetadata, after: AppliedMetadata, user: str, operation: AclOperation, *, allowed: bool
    ) -> None:
        """Compare the answer of a node to a guest with the states in which it may have decided.

        The host of a guest has the name of its user.
        """
        states = list(_between(self._acls, before, after))
        self.checked += 1
        if states and allowed not in {allows(entries, user, user, operation, VAULT) for entries in states}:
            verb = "allowed" if allowed else "denied"
            offset = f"{before.offset} to {after.offset}"
            self.violate(
                f"22: {user} was {verb} {operation.name} on {VAULT} by a node with metadata up to {offset}, whose ACLs"
                f" are {sorted(map(str, states[-1]))}"
            )

    def check_login(
        self, before: AppliedMetadata, after: AppliedMetadata, user: str, password: str, *, accepted: bool
    ) -> None:
        """Compare the outcome of a login with the credentials that the node may have had."""
        known = self.passwords.get((user, password), set())
        expected = {key is not None and key in known for key in _between(self._keys[user], before, after)}
        self.checked += 1
        if expected and accepted not in expected:
            verb = "accepted" if accepted else "refused"
            self.violate(
                f"23: the login of {user} with {password!r} was {verb} by a node with metadata up to {before.offset} to"
                f" {after.offset}"
            )

    def check_nodes(self, run: "Run") -> None:
        """At rest every node has the same ACLs and decides by them."""
        for machine in run.cluster.machines.values():
            services: Any = machine.node.services  # type: ignore[union-attr]
            for user in (*GUESTS, LOAD):
                for operation in OPERATIONS:
                    verdict = services.access.authorizer.authorize(
                        Principal("User", user), user, operation, AclResourceType.TOPIC, VAULT
                    )
                    if verdict.allowed is not allows(self.entries, user, user, operation, VAULT):
                        self.violate(
                            f"22: at rest node {machine.id} decides {verdict.rule} about {operation.name} of {user},"
                            f" where the ACLs are {sorted(map(str, self.entries))}"
                        )
            for (_, user), credential in services.metadata.image.scram.items():
                if bytes(credential.stored_key) != self.stored_key(user):
                    self.violate(f"23: at rest node {machine.id} has another credential of {user} than the log")


def _between(states: list[tuple[int, Any]], before: AppliedMetadata, after: AppliedMetadata) -> Iterator[Any]:
    """The states of a node while it applied one offset and the next; none if its process was another one."""
    if before.process is not after.process:
        return
    first = max(index for index, (offset, _) in enumerate(states) if offset <= before.offset)
    for index, (offset, state) in enumerate(states):
        if index == first or before.offset < offset <= after.offset:
            yield state


def unready(run: "Run") -> list[int]:
    """Nodes that have not applied the rights of the load yet."""
    last = run.rights.last_change
    return [
        machine.id
        for machine in run.cluster.machines.values()
        if machine.node is None or machine.node.services.metadata.image.provenance.offset < last
    ]


def position_of(machine: Machine) -> AppliedMetadata | None:
    """How far a running node has applied the metadata log."""
    services = getattr(machine.node, "services", None) if machine.running else None
    return AppliedMetadata(machine.process, services.metadata.image.provenance.offset) if services is not None else None
