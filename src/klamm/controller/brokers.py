r"""The lifecycle of a broker: registration, heartbeats, fencing, controlled shutdown.

registered, fenced  --caught up-->  active  --requests shutdown-->  controlled shutdown  --leaders moved-->  fenced
                                      \--session expired, or requests fencing--> fenced
"""

from collections.abc import Sequence

from klamm.controller.context import METADATA_VERSION, ControllerContext, ControllerDecision
from klamm.controller.heartbeats import Heartbeats
from klamm.controller.partitions import elect_leaderless, in_sync_partitions, leads_any, remove_from_isrs
from klamm.metadata.image import LOST_DIR, MIGRATING_DIR, UNASSIGNED_DIR, BrokerImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import broker_heartbeat as bh
from klamm.protocol.messages import broker_registration as br
from klamm.protocol.messages import controller_registration as cr
from klamm.protocol.messages import metadata_records as r
from klamm.protocol.messages import unregister_broker as ub

# Fields of BrokerRegistrationChangeRecord with three states: 0 leaves the state as it is.
FENCE, UNFENCE, IN_CONTROLLED_SHUTDOWN = 1, -1, 1


def register_broker(
    context: ControllerContext,
    heartbeats: Heartbeats,
    request: br.BrokerRegistrationRequest,
    *,
    next_offset: int,
    now_ms: int,
) -> ControllerDecision[br.BrokerRegistrationResponse]:
    """Register a broker process; its epoch is the offset of the decision's first record, and it starts fenced.

    A process with the id of a live broker is rejected. A new process first leaves the ISRs of the one before: after a
    clean shutdown it stays eligible to lead (KIP-966), after a crash it may have lost records it had acknowledged.
    """
    existing = context.image.cluster.get(request.broker_id)
    try:
        _check_registration(context, heartbeats, request, existing, now_ms)
    except KlammError as error:
        return ControllerDecision((), br.BrokerRegistrationResponse(error_code=error.code))
    record = r.RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=next_offset,
        end_points=[
            r.BrokerEndpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in request.listeners
        ],
        features=[
            r.BrokerFeature(
                name=feature.name,
                min_supported_version=feature.min_supported_version,
                max_supported_version=feature.max_supported_version,
            )
            for feature in request.features
        ],
        rack=request.rack,
        log_dirs=list(request.log_dirs),
    )
    records: list[r.MetadataRecord] = []
    if existing is not None and existing.incarnation_id == request.incarnation_id:
        # The same process again, whose first response was lost: it keeps its epoch and state.
        record.broker_epoch = existing.epoch
        record.fenced = existing.fenced
        record.in_controlled_shutdown = existing.in_controlled_shutdown
    elif existing is not None:
        unclean = context.elr_enabled and request.previous_broker_epoch != existing.epoch
        affected = in_sync_partitions(context, request.broker_id, eligible=unclean)
        records += remove_from_isrs(context, request.broker_id, affected, unclean=unclean)
    # Last: a divisible decision must not register a process before the one before it has left the ISRs.
    records.append(record)
    response = br.BrokerRegistrationResponse(broker_epoch=record.broker_epoch)
    return ControllerDecision(tuple(records), response, divisible=True)


def _check_registration(
    context: ControllerContext,
    heartbeats: Heartbeats,
    request: br.BrokerRegistrationRequest,
    existing: BrokerImage | None,
    now_ms: int,
) -> None:
    if request.cluster_id != context.config.cluster_id:
        raise KlammError(ErrorCode.INCONSISTENT_CLUSTER_ID)
    if (
        existing is not None
        and existing.incarnation_id != request.incarnation_id
        and not existing.in_controlled_shutdown  # a restart after a clean shutdown need not wait for the session
        and heartbeats.has_session(request.broker_id, now_ms)
        and not _replaces_dead(heartbeats, request, existing)
    ):
        raise KlammError(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    if request.is_migrating_zk_broker:
        # Migration from ZooKeeper ended with Kafka 4.0.
        raise KlammError(ErrorCode.BROKER_ID_NOT_REGISTERED)
    _check_directories(context, request)
    supported = {feature.name: feature for feature in request.features}
    for name, level in context.image.features.items():
        # A feature that a broker does not name is one it supports at level 0 only, which means disabled.
        span = supported.get(name)
        if span is None and name == METADATA_VERSION:
            raise KlammError(ErrorCode.UNSUPPORTED_VERSION)
        low, high = (span.min_supported_version, span.max_supported_version) if span is not None else (0, 0)
        if not low <= level <= high:
            raise KlammError(ErrorCode.UNSUPPORTED_VERSION)


def _replaces_dead(heartbeats: Heartbeats, request: br.BrokerRegistrationRequest, existing: BrokerImage) -> bool:
    """Whether the former process is dead: its connection is closed, and the new process has bound its addresses."""
    if heartbeats.is_connected(existing.id):
        return False
    listeners = {listener.name: (listener.host, listener.port) for listener in request.listeners}
    return bool(listeners) and listeners == {
        name: (endpoint.host, endpoint.port) for name, endpoint in existing.endpoints.items()
    }


def _check_directories(context: ControllerContext, request: br.BrokerRegistrationRequest) -> None:
    directories = set(request.log_dirs)
    if not directories or len(directories) != len(request.log_dirs):
        raise KlammError(ErrorCode.INVALID_REGISTRATION)
    if directories & {UNASSIGNED_DIR, LOST_DIR, MIGRATING_DIR}:
        raise KlammError(ErrorCode.INVALID_REGISTRATION)
    # A directory id identifies a disk: two brokers with the same one share or have copied a folder.
    for other in context.image.cluster.brokers.values():
        if other.id != request.broker_id and directories & set(other.directories):
            raise KlammError(ErrorCode.INVALID_REGISTRATION)


def broker_heartbeat(
    context: ControllerContext,
    heartbeats: Heartbeats,
    request: bh.BrokerHeartbeatRequest,
    *,
    next_offset: int,
    now_ms: int,
) -> ControllerDecision[bh.BrokerHeartbeatResponse]:
    """Renew a broker's session, and decide its next state: unfence it when caught up, let it shut down when it may.

    A broker in controlled shutdown becomes active again only by a new registration.
    """
    broker = context.image.cluster.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return ControllerDecision((), bh.BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    heartbeats.touch(broker.id, broker.epoch, now_ms, request.current_metadata_offset)
    # The epoch is an offset of its registration: a broker that has read so far has the state it was registered into.
    caught_up = request.current_metadata_offset >= broker.epoch
    response = bh.BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=broker.fenced)
    records: list[r.MetadataRecord] = []
    if broker.fenced:
        if request.want_shut_down:
            response.should_shut_down = True
        elif caught_up and not request.want_fence and not broker.in_controlled_shutdown:
            records += _unfence(context, broker)
            response.is_fenced = False
    elif request.want_fence or (request.want_shut_down and _can_stop(context, heartbeats, broker)):
        records += fence_records(context, broker)
        response.is_fenced = True
        response.should_shut_down = request.want_shut_down
    elif request.want_shut_down and not broker.in_controlled_shutdown:
        records.append(_change(broker, in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN))
        records += remove_from_isrs(context, broker.id, in_sync_partitions(context, broker.id))
        # It may stop once the other brokers have read these records: until then they look for leaders on it.
        heartbeats.begin_shutdown(broker.id, next_offset + len(records) - 1)
    records += _directory_changes(context, broker, request)
    return ControllerDecision(tuple(records), response, divisible=True)


def _can_stop(context: ControllerContext, heartbeats: Heartbeats, broker: BrokerImage) -> bool:
    if not broker.in_controlled_shutdown:
        return not leads_any(context, broker.id)
    return not leads_any(context, broker.id) and heartbeats.may_stop(context.image, broker.id)


def _unfence(context: ControllerContext, broker: BrokerImage) -> list[r.MetadataRecord]:
    # The image still has the broker fenced, so the election takes its id as an argument.
    return [_change(broker, fenced=UNFENCE), *elect_leaderless(context, broker.id)]


def fence_records(context: ControllerContext, broker: BrokerImage) -> list[r.MetadataRecord]:
    """The records that fence a broker: it leaves every ISR and leadership."""
    changes = remove_from_isrs(context, broker.id, in_sync_partitions(context, broker.id))
    # Last: a divisible decision must not leave leaders on a broker that is fenced already.
    return [*changes, _change(broker, fenced=FENCE)]


def _directory_changes(
    context: ControllerContext, broker: BrokerImage, request: bh.BrokerHeartbeatRequest
) -> list[r.MetadataRecord]:
    """The records for failed and cordoned directories; replicas on a failed one leave their ISRs (KIP-858)."""
    offline = [directory for directory in broker.directories if directory in request.offline_log_dirs]
    cordoned = request.cordoned_log_dirs
    if not offline:
        if cordoned is None or tuple(cordoned) == (broker.cordoned_directories or ()):
            return []
        return [_change(broker, cordoned=cordoned)]
    affected = [
        (topic, index, partition)
        for topic, index, partition in in_sync_partitions(context, broker.id)
        if partition.directory(broker.id) in offline
    ]
    online = [directory for directory in broker.directories if directory not in offline]
    return [*remove_from_isrs(context, broker.id, affected), _change(broker, log_dirs=online, cordoned=cordoned)]


def _change(
    broker: BrokerImage,
    fenced: int = 0,
    in_controlled_shutdown: int = 0,
    log_dirs: Sequence[bytes] = (),
    cordoned: Sequence[bytes] | None = None,
) -> r.BrokerRegistrationChangeRecord:
    return r.BrokerRegistrationChangeRecord(
        broker_id=broker.id,
        broker_epoch=broker.epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
        log_dirs=list(log_dirs),
        cordoned_log_dirs=None if cordoned is None else list(cordoned),
    )


def unregister_broker(
    context: ControllerContext, request: ub.UnregisterBrokerRequest
) -> ControllerDecision[ub.UnregisterBrokerResponse]:
    """Unregister a broker, and remove it from the ISRs it is in."""
    broker = context.image.cluster.get(request.broker_id)
    if broker is None:
        message = f"Broker ID {request.broker_id} is not currently registered"
        code = ErrorCode.BROKER_ID_NOT_REGISTERED
        return ControllerDecision((), ub.UnregisterBrokerResponse(error_code=code, error_message=message))
    # Unregistering may follow the loss of a machine: its replicas are not eligible any more.
    affected = in_sync_partitions(context, broker.id, eligible=True)
    changes = remove_from_isrs(context, broker.id, affected, unclean=True)
    record = r.UnregisterBrokerRecord(broker_id=broker.id, broker_epoch=broker.epoch)
    return ControllerDecision((*changes, record), ub.UnregisterBrokerResponse(error_message=None), divisible=True)


def register_controller(
    request: cr.ControllerRegistrationRequest,
) -> ControllerDecision[cr.ControllerRegistrationResponse]:
    """Record a controller's listeners and the feature levels it supports."""
    record = r.RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=False,
        end_points=[
            r.ControllerEndpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in request.listeners
        ],
        features=[
            r.ControllerFeature(
                name=feature.name,
                min_supported_version=feature.min_supported_version,
                max_supported_version=feature.max_supported_version,
            )
            for feature in request.features
        ],
    )
    return ControllerDecision((record,), cr.ControllerRegistrationResponse(error_message=None))
