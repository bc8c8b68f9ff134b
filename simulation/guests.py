"""Users whose rights and passwords change, and the administrator who changes them."""

from typing import TYPE_CHECKING, Any

from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.model.errors import ErrorCode
from klamm.net.peer import Peer, PeerGone
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from klamm.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.records import build_batch
from klamm.security.core.scram import ITERATIONS_MIN
from simulation.client import GONE, TIMEOUT_MS, Client
from simulation.cluster import Machine
from simulation.layout import BROKER_PORT
from simulation.rights import OPERATIONS, VAULT, TopicAcl, position_of
from simulation.users import ADMIN, GUESTS, LOAD, MECHANISM, first_password, login_as, make_keys, salt_password

if TYPE_CHECKING:
    from simulation.run import Run

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
PLACE = (VAULT, 0)
ENTRIES_MAX = 6
"""With more of them, most requests would be decided by the same few."""


class Guest(Client):
    """Tries what it may and what it may not, on any broker, and compares the answers with the model of rights."""

    topic = VAULT

    def __init__(self, run: "Run", user: str) -> None:
        super().__init__(run.cluster, user, user)
        self._run = run
        self.pace = 0.2
        self.number = 0
        self.busy = False

    @property
    def done(self) -> bool:
        """Whether it has ended after a stop."""
        return self.stopping and not self.busy

    async def run(self) -> None:
        while not self.stopping:
            self.busy = True
            machine = self._choose_machine()
            chance = self.random.random()
            if chance < 0.1:
                await self._try_login(machine)
            elif chance < 0.2:
                await self._try_to_grant(machine)
            else:
                await self._try(machine, self.random.choice((*OPERATIONS, AclOperation.WRITE)))
            self.busy = False
            await self.pause(self.pace)

    def _choose_machine(self) -> Machine:
        """The leader of the partition, or any broker: rights come before all else, also before "not the leader"."""
        brokers = [machine for machine in self.cluster.machines.values() if machine.is_broker]
        leading = [
            m for m in brokers if m.running and any(map(_leads_vault, getattr(m.node, "services", _NO).replicas))
        ]
        return self.random.choice(leading if leading and self.random.random() < 0.6 else brokers)

    def _peer_of(self, machine: Machine) -> Peer:
        return self.peer((machine.host, BROKER_PORT))

    async def _try(self, machine: Machine, operation: AclOperation) -> None:
        before = position_of(machine)
        value = b""
        if operation is AclOperation.WRITE:
            self.number += 1
            value = f"{self.name}.{self.number}".encode()
            # A writer of its own: an attempt without an answer is not repeated, but may be stored after a later one.
            self._run.ledger.send(PLACE, value, value.decode(), 1)
        try:
            code, offset = await self._ask(machine, operation, value)
        except GONE:
            return
        after = position_of(machine)
        if before is not None and after is not None:
            allowed = code != DENIED
            self._run.rights.check_decision(before, after, self.user, operation, allowed=allowed)
        if operation is AclOperation.WRITE:
            if code == ErrorCode.NONE:
                self._run.ledger.ack(PLACE, offset, [value])
            elif code == DENIED:
                self._run.ledger.denied.add(value)

    async def _ask(self, machine: Machine, operation: AclOperation, value: bytes) -> tuple[ErrorCode, int]:
        peer = self._peer_of(machine)
        answer: Any
        if operation is AclOperation.WRITE:
            now = self.cluster.machines[1].clock.now_ms()
            data = PartitionProduceData(index=0, records=bytes(build_batch([(now, None, value, ())])))
            request = ProduceRequest(
                acks=-1, timeout_ms=2_000, topic_data=[TopicProduceData(name=VAULT, partition_data=[data])]
            )
            response = await peer.ask(request, 11, timeout_ms=TIMEOUT_MS)
            answer = response.responses[0].partition_responses[0]
            return ErrorCode(answer.error_code), answer.base_offset
        if operation is AclOperation.READ:
            partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1024)
            fetch = FetchRequest(
                max_wait_ms=0, min_bytes=1, max_bytes=1024, topics=[FetchTopic(topic=VAULT, partitions=[partition])]
            )
            response = await peer.ask(fetch, 12, timeout_ms=TIMEOUT_MS)
            answer = response.responses[0].partitions[0]
            return ErrorCode(answer.error_code), -1
        metadata = MetadataRequest(topics=[MetadataRequestTopic(name=VAULT)], allow_auto_topic_creation=False)
        response = await peer.ask(metadata, 12, timeout_ms=TIMEOUT_MS)
        return ErrorCode(response.topics[0].error_code), -1

    async def _try_to_grant(self, machine: Machine) -> None:
        """Guests never get a right on the cluster."""
        entry = TopicAcl(VAULT, False, f"User:{self.user}", "*", AclOperation.ALL, False)
        try:
            response = await self._peer_of(machine).ask(CreateAclsRequest(creations=[_creation(entry)]), 3)
        except GONE:
            return
        if response.results[0].error_code == ErrorCode.NONE:
            self._run.violate(f"22: {self.user} has given a right to itself")

    async def _try_login(self, machine: Machine) -> None:
        passwords = self._run.rights_admin.passwords[self.user]
        password = self.random.choice((passwords[-1], passwords[-1], self.random.choice(passwords), "wrong"))
        before = position_of(machine)
        peer = Peer(
            self.loop,
            machine.host,
            BROKER_PORT,
            client_id=self.name,
            request_timeout_ms=TIMEOUT_MS,
            security=login_as(self.user, password, tls=self.cluster.layout.tls),
        )
        accepted = True
        try:
            await peer.ask(ApiVersionsRequest(client_software_name="guest", client_software_version="1"), 3)
        except PeerGone as error:
            if not isinstance(error.__cause__, PermissionError):
                return
            accepted = False
        except GONE:
            return
        finally:
            peer.disconnect()
        after = position_of(machine)
        if before is not None and after is not None:
            self._run.rights.check_login(before, after, self.user, password, accepted=accepted)


class _NoServices:
    replicas = ()


_NO = _NoServices()


def _leads_vault(replica: Any) -> bool:
    return bool(replica.topic == VAULT and replica.leads)


class RightsAdmin(Client):
    """Changes rights and passwords, one change at a time, each until it is acknowledged; then it must not be lost."""

    topic = VAULT

    def __init__(self, run: "Run") -> None:
        super().__init__(run.cluster, "rights admin", ADMIN)
        self._run = run
        self.pace = 0.4
        self.busy = False
        self.changes = 0
        self._numbers = 0
        self._salt = self.cluster.chance("salts")
        self.passwords = {user: [first_password(user)] for user in GUESTS}
        """All that a guest had, the present one last."""
        for user in GUESTS:
            run.rights.passwords[user, first_password(user)] = {
                make_keys(first_password(user), user.encode().ljust(16)).stored_key
            }
        self._acknowledged: dict[TopicAcl, bool] = {}
        """Whether an entry is there, by the last acknowledged change of it."""
        self._uncertain: set[object] = set()
        """TopicAcls and users of which a request had no answer: it may be carried out at any later time."""

    @property
    def done(self) -> bool:
        """Whether the last change is settled."""
        return self.stopping and not self.busy

    async def run(self) -> None:
        while not self.stopping:
            self.busy = True
            if self.random.random() < 0.25:
                await self._change_password(self.random.choice(GUESTS))
            else:
                await self._change_entries()
            self.changes += 1
            self.check()
            self.busy = False
            await self.pause(self.pace)

    def check(self) -> None:
        """No acknowledged change is lost."""
        entries = self._run.rights.entries
        for entry, present in self._acknowledged.items():
            if entry not in self._uncertain and (entry in entries) is not present:
                verb = "created" if present else "deleted"
                self._run.violate(f"22: the ACL to {entry} was {verb}, and that is lost")

    async def _change_entries(self) -> None:
        present = [entry for entry, there in self._acknowledged.items() if there]
        if len(present) >= ENTRIES_MAX or (present and self.random.random() < 0.45):
            entry = self.random.choice(present)
            await self._retry_request(DeleteAclsRequest(filters=[_filter(entry)]), 3, entry)
            self._acknowledged[entry] = False
            self._run.note(f"no more: {entry}")
            return
        entry = self._draw_entry()
        await self._retry_request(CreateAclsRequest(creations=[_creation(entry)]), 3, entry)
        self._acknowledged[entry] = True
        self._run.note(str(entry))

    def _draw_entry(self) -> TopicAcl:
        chance = self.random
        user = chance.choice(GUESTS)
        name, prefixed = chance.choice(((VAULT, False), (VAULT, False), ("va", True), ("vault-", True), ("*", False)))
        principal = chance.choice((f"User:{user}",) * 3 + ("User:*",))
        host = chance.choice(("*", "*", "*", user, "10.9.9.9"))
        # On all topics nothing is denied, and not everything allowed: the other clients go on.
        everywhere = name == "*"
        operation = chance.choice(OPERATIONS if everywhere else (*OPERATIONS, AclOperation.ALL))
        return TopicAcl(name, prefixed, principal, host, operation, not everywhere and chance.random() < 0.3)

    async def _change_password(self, user: str) -> None:
        self._numbers += 1
        if self.random.random() < 0.2:
            request = AlterUserScramCredentialsRequest(
                deletions=[ScramCredentialDeletion(name=user, mechanism=MECHANISM.number)]
            )
            self._run.note(f"{user} may log in no more")
            await self._retry_request(request, 0, user)
            self._check_credential(user, None)
        password, salt = f"{user}-{self._numbers}", self._salt.randbytes(16)
        key = make_keys(password, salt).stored_key
        self._run.rights.passwords[user, password] = {key}
        request = AlterUserScramCredentialsRequest(
            upsertions=[
                ScramCredentialUpsertion(
                    name=user,
                    mechanism=MECHANISM.number,
                    iterations=ITERATIONS_MIN,
                    salt=salt,
                    salted_password=salt_password(password, salt),
                )
            ]
        )
        await self._retry_request(request, 0, user)
        self._run.note(f"{user} has password {password}")
        self.passwords[user].append(password)
        self._check_credential(user, key)
        # Open connections stay logged in; later ones use the new password.
        for client in self._run.clients:
            if isinstance(client, Guest) and client.user == user:
                client.password = password
                client.forget_peers()

    def _check_credential(self, user: str, key: bytes | None) -> None:
        if user not in self._uncertain and self._run.rights.stored_key(user) != key:
            self._run.violate(f"23: a change of the credential of {user} was acknowledged and is lost")

    async def _retry_request(self, request: Any, version: int, subject: object) -> None:
        while True:
            try:
                response = await self.ask(None, request, version)
            except GONE:
                self._uncertain.add(subject)
            else:
                if _is_acknowledged(response):
                    return
            await self.pause()


def _is_acknowledged(response: Any) -> bool:
    results = getattr(response, "results", None)
    if results is None:
        results = response.filter_results
    # A credential that an earlier attempt has deleted.
    return all(result.error_code in (ErrorCode.NONE, ErrorCode.RESOURCE_NOT_FOUND) for result in results)


def _creation(entry: TopicAcl) -> AclCreation:
    return AclCreation(
        resource_type=AclResourceType.TOPIC,
        resource_name=entry.name,
        resource_pattern_type=PatternType.PREFIXED if entry.prefixed else PatternType.LITERAL,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=AclPermission.DENY if entry.denies else AclPermission.ALLOW,
    )


def _filter(entry: TopicAcl) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=AclResourceType.TOPIC,
        resource_name_filter=entry.name,
        pattern_type_filter=PatternType.PREFIXED if entry.prefixed else PatternType.LITERAL,
        principal_filter=entry.principal,
        host_filter=entry.host,
        operation=entry.operation,
        permission_type=AclPermission.DENY if entry.denies else AclPermission.ALLOW,
    )


def rights_of_load() -> CreateAclsRequest:
    """What the other clients may do: everything with topics, groups and transactional ids."""
    everything = [
        AclCreation(
            resource_type=kind,
            resource_name="*",
            resource_pattern_type=PatternType.LITERAL,
            principal=f"User:{LOAD}",
            host="*",
            operation=operation,
            permission_type=AclPermission.ALLOW,
        )
        for kind, operation in (
            (AclResourceType.TOPIC, AclOperation.ALL),
            (AclResourceType.GROUP, AclOperation.ALL),
            (AclResourceType.TRANSACTIONAL_ID, AclOperation.ALL),
        )
    ]
    return CreateAclsRequest(creations=everything)
