"""The active controller: decides every admin request; only its decisions are written to the metadata log.

Decide methods read the image and return a ControllerDecision; they do not change the image. Only `replay` changes it,
by the same code that every node uses. The caller appends a decision's records as one batch and replays them at once, so
that the next decision sees them; the response waits until they are committed. When leadership is lost, records that
were replayed but not committed are dropped by taking over again from the committed image.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from klamm.controller import (
    acls,
    brokers,
    client_quotas,
    configs,
    delegation_tokens,
    directories,
    features,
    partition_elections,
    partitions,
    producer_ids,
    reassignment,
    scram_credentials,
    topics,
)
from klamm.controller.change_logging import log_changes
from klamm.controller.config_validation import ConfigValidator
from klamm.controller.context import ControllerConfig, ControllerContext, ControllerDecision, RandomSource
from klamm.controller.heartbeats import Heartbeats
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE, ClientQuotaEntity, MetadataImage
from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from klamm.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from klamm.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from klamm.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from klamm.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from klamm.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from klamm.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from klamm.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from klamm.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from klamm.protocol.messages.metadata_records import MetadataRecord
from klamm.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from klamm.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from klamm.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from klamm.security.core.client_quotas import ClientQuotas, MutationCharge
from klamm.security.core.principal import ANONYMOUS, Principal

STRICT_SINCE: Final = {CreateTopicsRequest: 6, DeleteTopicsRequest: 5, CreatePartitionsRequest: 3}
"""The versions from which changes above a client's quota are refused (KIP-599); earlier ones are only throttled."""


class QuotaClient(NamedTuple):
    """The client of a request, as quotas name it, and its identity, which may own delegation tokens."""

    user: str
    client_id: str
    principal: Principal = ANONYMOUS


class Controller:
    """Decides about the cluster; pure: time, offsets and randomness are arguments."""

    def __init__(
        self,
        config: ControllerConfig,
        validator: ConfigValidator,
        random: RandomSource,
        image: MetadataImage = EMPTY_IMAGE,
    ) -> None:
        self.config = config
        self.image = image
        """The state that decisions are based on: everything replayed, committed or not."""
        self._validator = validator
        self._random = random
        self._heartbeats = Heartbeats(config.broker_session_timeout_ms)
        self._quotas = ClientQuotas(config.mutation_window)
        """Soft state, as the heartbeats: buckets of changes begin full after a takeover."""
        self._quotas_image: Mapping[ClientQuotaEntity, Mapping[str, float]] = {}

    def take_over(self, image: MetadataImage, now_ms: int) -> ControllerDecision[None]:
        """Become active on the committed image; the decision holds the first records of an empty log."""
        self.image = image
        self._heartbeats.take_over(image, now_ms)
        # Every cluster has a metadata.version: no feature level means that the log is empty.
        if image.features:
            return ControllerDecision((), None)
        return ControllerDecision((*features.bootstrap_records(self._context()), *self.config.first_records), None)

    def replay(self, records: Iterable[MetadataRecord], offset: int = -1, epoch: int = -1) -> None:
        """Apply a decision's records, the last of which gets `offset`."""
        records = tuple(records)
        if not records:
            return
        delta = MetadataDelta(self.image)
        delta.replay_all(records)
        self.image = delta.apply(offset, epoch)
        log_changes(delta, records)
        for broker_id, broker in delta.brokers_changed.items():
            if broker is None:
                self._heartbeats.forget(broker_id)

    def _context(self, mutations: MutationCharge | None = None) -> ControllerContext:
        return ControllerContext(self.image, self.config, self._validator, self._random, mutations)

    def _find_charge(
        self, request: Any, version: int, client: QuotaClient | None, now_ms: int
    ) -> MutationCharge | None:
        """Return what the request is charged to; None if its client has no quota of changes."""
        if client is None or not self.image.client_quotas:
            return None
        if self.image.client_quotas is not self._quotas_image:
            self._quotas_image = self.image.client_quotas
            self._quotas.set_quotas({entity.parts: limits for entity, limits in self._quotas_image.items()})
        limits = self._quotas.find(client.user, client.client_id, now_ms)
        if limits is None or limits.mutations is None:
            return None
        return MutationCharge(limits.mutations, now_ms, strict=version >= STRICT_SINCE[type(request)])

    def decide(
        self,
        request: Any,
        version: int,
        *,
        next_offset: int,
        now_ms: int,
        client: QuotaClient | None = None,
        wall_ms: int = 0,
    ) -> ControllerDecision[Any]:
        """Decide any request of the controller API; `next_offset` is the offset of the decision's first record.

        `client` is charged with the partitions that a request creates or deletes. `now_ms` is the monotonic time,
        `wall_ms` the time of day, which delegation tokens contain.
        """
        requester = client.principal if client is not None else ANONYMOUS
        match request:
            case BrokerHeartbeatRequest():
                return self.broker_heartbeat(request, next_offset=next_offset, now_ms=now_ms)
            case AlterPartitionRequest():
                return self.alter_partition(request, version)
            case CreateTopicsRequest():
                return self.create_topics(request, self._find_charge(request, version, client, now_ms))
            case DeleteTopicsRequest():
                return self.delete_topics(request, version, self._find_charge(request, version, client, now_ms))
            case CreatePartitionsRequest():
                return self.create_partitions(request, self._find_charge(request, version, client, now_ms))
            case IncrementalAlterConfigsRequest():
                return self.incremental_alter_configs(request)
            case AlterConfigsRequest():
                return self.alter_configs(request)
            case BrokerRegistrationRequest():
                return self.register_broker(request, next_offset=next_offset, now_ms=now_ms)
            case UnregisterBrokerRequest():
                return self.unregister_broker(request)
            case ControllerRegistrationRequest():
                return self.register_controller(request)
            case AssignReplicasToDirsRequest():
                return self.assign_replicas_to_dirs(request)
            case ElectLeadersRequest():
                return self.elect_leaders(request)
            case AlterPartitionReassignmentsRequest():
                return self.alter_partition_reassignments(request)
            case ListPartitionReassignmentsRequest():
                return self.list_partition_reassignments(request)
            case AllocateProducerIdsRequest():
                return self.allocate_producer_ids(request)
            case AlterUserScramCredentialsRequest():
                return self.alter_user_scram_credentials(request)
            case AlterClientQuotasRequest():
                return self.alter_client_quotas(request)
            case UpdateFeaturesRequest():
                return self.update_features(request, version)
            case CreateAclsRequest():
                return self.create_acls(request)
            case DeleteAclsRequest():
                return self.delete_acls(request)
            case CreateDelegationTokenRequest():
                return delegation_tokens.create_token(self._context(), request, requester, wall_ms)
            case RenewDelegationTokenRequest():
                return delegation_tokens.renew_token(self._context(), request, requester, wall_ms)
            case ExpireDelegationTokenRequest():
                return delegation_tokens.expire_token(self._context(), request, requester, wall_ms)
        raise TypeError(f"{type(request).__name__} is not a request of the controller")

    # Topics

    def create_topics(
        self, request: CreateTopicsRequest, mutations: MutationCharge | None = None
    ) -> ControllerDecision[CreateTopicsResponse]:
        """CreateTopics v2-7."""
        return topics.create_topics(self._context(mutations), request)

    def delete_topics(
        self, request: DeleteTopicsRequest, version: int, mutations: MutationCharge | None = None
    ) -> ControllerDecision[DeleteTopicsResponse]:
        """DeleteTopics v1-6."""
        return topics.delete_topics(self._context(mutations), request, version)

    def create_partitions(
        self, request: CreatePartitionsRequest, mutations: MutationCharge | None = None
    ) -> ControllerDecision[CreatePartitionsResponse]:
        """CreatePartitions v0-3."""
        return topics.create_partitions(self._context(mutations), request)

    # Configs

    def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest
    ) -> ControllerDecision[IncrementalAlterConfigsResponse]:
        """IncrementalAlterConfigs v0-1."""
        return configs.incremental_alter_configs(self._context(), request)

    def alter_configs(self, request: AlterConfigsRequest) -> ControllerDecision[AlterConfigsResponse]:
        """AlterConfigs v0-2."""
        return configs.alter_configs(self._context(), request)

    # Brokers

    def register_broker(
        self, request: BrokerRegistrationRequest, *, next_offset: int, now_ms: int
    ) -> ControllerDecision[BrokerRegistrationResponse]:
        """BrokerRegistration v0-4; `next_offset` becomes the broker epoch."""
        context = self._context()
        return brokers.register_broker(context, self._heartbeats, request, next_offset=next_offset, now_ms=now_ms)

    def broker_heartbeat(
        self, request: BrokerHeartbeatRequest, *, next_offset: int, now_ms: int
    ) -> ControllerDecision[BrokerHeartbeatResponse]:
        """BrokerHeartbeat v0-2; also renews the session, which is soft state and not part of the image."""
        context = self._context()
        return brokers.broker_heartbeat(context, self._heartbeats, request, next_offset=next_offset, now_ms=now_ms)

    def unregister_broker(self, request: UnregisterBrokerRequest) -> ControllerDecision[UnregisterBrokerResponse]:
        """UnregisterBroker v0."""
        return brokers.unregister_broker(self._context(), request)

    def register_controller(
        self, request: ControllerRegistrationRequest
    ) -> ControllerDecision[ControllerRegistrationResponse]:
        """ControllerRegistration v0."""
        return brokers.register_controller(request)

    def tick(self, now_ms: int) -> ControllerDecision[bool]:
        """Fence a broker whose session has expired; the response is whether another one waits to be fenced."""
        stale = self._heartbeats.stale_brokers(self.image, now_ms)
        if not stale:
            return ControllerDecision((), response=False)
        # One broker per decision: it may move thousands of leaders, and the loop has other work.
        broker = self.image.cluster.brokers[stale[0]]
        return ControllerDecision(tuple(brokers.fence_records(self._context(), broker)), len(stale) > 1, divisible=True)

    def next_tick_ms(self) -> int | None:
        """When `tick` may next have something to do."""
        return self._heartbeats.next_expiry_ms(self.image)

    def extend_sessions(self, pause_ms: int) -> None:
        """Extend the sessions of all brokers by a pause of this process."""
        self._heartbeats.extend(pause_ms)

    def on_broker_disconnected(self, broker_id: int) -> None:
        """Record that a broker's connection was closed: a new process at its address may now replace it."""
        self._heartbeats.mark_disconnected(broker_id)

    def fence_dead_broker(self, broker_id: int, broker_epoch: int) -> ControllerDecision[bool]:
        """Fence a broker whose process is known to be dead; the response is whether it was unfenced before."""
        broker = self.image.cluster.get(broker_id)
        if broker is None or broker.epoch != broker_epoch:
            return ControllerDecision((), response=False)
        # Also if it is fenced already: a new process with its id must not wait for the old session.
        self._heartbeats.forget(broker_id)
        if broker.fenced:
            return ControllerDecision((), response=False)
        return ControllerDecision(tuple(brokers.fence_records(self._context(), broker)), response=True, divisible=True)

    def remove_expired_tokens(self, wall_ms: int) -> ControllerDecision[bool]:
        """Remove delegation tokens that have expired; the response is whether there are more."""
        return delegation_tokens.remove_expired(self._context(), wall_ms)

    # Partitions

    def alter_partition(
        self, request: AlterPartitionRequest, version: int
    ) -> ControllerDecision[AlterPartitionResponse]:
        """AlterPartition v2-3."""
        return partitions.alter_partition(self._context(), request, version)

    def assign_replicas_to_dirs(
        self, request: AssignReplicasToDirsRequest
    ) -> ControllerDecision[AssignReplicasToDirsResponse]:
        """AssignReplicasToDirs v0."""
        return directories.assign_replicas_to_dirs(self._context(), request)

    def elect_leaders(self, request: ElectLeadersRequest) -> ControllerDecision[ElectLeadersResponse]:
        """ElectLeaders v0-2."""
        return partition_elections.elect_leaders(self._context(), request)

    def balance_leaders(self, limit: int = 1_000) -> ControllerDecision[bool]:
        """Move leadership back to preferred replicas; the response is whether more partitions may need it."""
        return partition_elections.balance_leaders(self._context(), limit)

    def elect_unclean_leaders(self, limit: int = 1_000) -> ControllerDecision[bool]:
        """Elect leaders for leaderless partitions whose topic allows an unclean election."""
        return partition_elections.elect_unclean_leaders(self._context(), limit)

    def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest
    ) -> ControllerDecision[AlterPartitionReassignmentsResponse]:
        """AlterPartitionReassignments v0-1."""
        return reassignment.alter_partition_reassignments(self._context(), request)

    def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest
    ) -> ControllerDecision[ListPartitionReassignmentsResponse]:
        """ListPartitionReassignments v0."""
        return reassignment.list_partition_reassignments(self._context(), request)

    # Users

    def alter_user_scram_credentials(
        self, request: AlterUserScramCredentialsRequest
    ) -> ControllerDecision[AlterUserScramCredentialsResponse]:
        """AlterUserScramCredentials v0."""
        return scram_credentials.alter_user_scram_credentials(self._context(), request)

    def alter_client_quotas(self, request: AlterClientQuotasRequest) -> ControllerDecision[AlterClientQuotasResponse]:
        """AlterClientQuotas v0-1."""
        return client_quotas.alter_client_quotas(self._context(), request)

    # Producer ids and features

    def allocate_producer_ids(
        self, request: AllocateProducerIdsRequest
    ) -> ControllerDecision[AllocateProducerIdsResponse]:
        """AllocateProducerIds v0."""
        return producer_ids.allocate_producer_ids(self._context(), request)

    def update_features(
        self, request: UpdateFeaturesRequest, version: int, kraft_version: int = 0
    ) -> ControllerDecision[UpdateFeaturesResponse]:
        """UpdateFeatures v0-2; `kraft_version` is the present level of the quorum."""
        return features.update_features(self._context(), request, version, kraft_version)

    # ACLs

    def create_acls(self, request: CreateAclsRequest) -> ControllerDecision[CreateAclsResponse]:
        """CreateAcls v1-3."""
        return acls.create_acls(self._context(), request)

    def delete_acls(self, request: DeleteAclsRequest) -> ControllerDecision[DeleteAclsResponse]:
        """DeleteAcls v1-3."""
        return acls.delete_acls(self._context(), request)
