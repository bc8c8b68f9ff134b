"""Makes the parts of a node from its configuration and its environment; none of them runs yet.

One function per concern. The node (`node.py`) calls them in the order in which the parts need each other, and starts
what they return.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from klamm.controller import CatalogValidator, Controller, ControllerConfig
from klamm.metadata.loader import MetadataLoader
from klamm.net import LoopTurn, NetServer
from klamm.raft import RaftDriver
from klamm.replication import ReplicaManager
from klamm.security.core.authorizer import StandardAuthorizer
from klamm.security.core.principal import ANONYMOUS, parse_principal
from klamm.server.boot.component_configs import (
    bootstrap_addresses,
    client_quota_window,
    quorum_endpoint,
    raft_config,
    replication_config,
    storage_config,
)
from klamm.server.boot.config import NodeConfig
from klamm.server.boot.config_checks import STANDARD_AUTHORIZER, parse_super_users
from klamm.server.boot.environment import Environment
from klamm.server.cluster.lifecycle import BrokerLifecycle
from klamm.server.controller.channel import ForwardedClient, encode_principal
from klamm.server.controller.link import ControllerLink
from klamm.server.controller.quorum_membership import QuorumMembership
from klamm.server.controller.raft_transport import RaftTransport
from klamm.server.controller.runtime import ControllerRuntime, Duties
from klamm.server.controller.snapshots import Snapshotter
from klamm.server.login.security import NodeSecurity
from klamm.server.requests.access.control import AccessControl
from klamm.server.requests.access.quotas import BrokerQuotas, system_cpu_ns
from klamm.storage import LogManager

Addresses = dict[str, tuple[str, int]]
"""The bound host and port of each listener, by its name."""

Fail = Callable[[BaseException], None]
"""Stops the node."""


@dataclass(frozen=True, slots=True)
class QuorumMember:
    """This node's member of the metadata quorum, voter or observer."""

    loader: MetadataLoader
    snapshotter: Snapshotter
    transport: RaftTransport
    raft: RaftDriver
    membership: QuorumMembership


def make_logs(
    loop: asyncio.AbstractEventLoop,
    config: NodeConfig,
    environment: Environment,
    *,
    fail: Fail,
    on_dir_offline: Callable[[], None],
) -> LogManager:
    """Make the logs of all data folders; `on_dir_offline` is called when one fails that the node can do without."""
    return LogManager(
        storage_config(config),
        clock=environment.clock,
        disk=environment.disk,
        threads=environment.threads,
        new_uuid=environment.new_uuid,
        # Recovery, cleaning and fsync report from threads.
        call_on_loop=loop.call_soon_threadsafe,
        on_failure=lambda _log, failure: fail(failure),
        on_dir_offline=lambda _dir: on_dir_offline(),
    )


def make_quorum_member(
    loop: asyncio.AbstractEventLoop,
    config: NodeConfig,
    environment: Environment,
    logs: LogManager,
    addresses: Addresses,
    security: NodeSecurity,
    *,
    fail: Fail,
) -> QuorumMember:
    """Make Raft, the transport of its messages, and the loader of the metadata it commits."""
    cluster_id = logs.cluster_id or ""
    # From the bound addresses: a controller listener on port 0 has its real port only now.
    endpoint = quorum_endpoint(config, addresses)
    loader = MetadataLoader()
    snapshotter = Snapshotter(
        loader,
        environment.clock,
        bytes_max=config.integer("metadata.log.max.record.bytes.between.snapshots"),
        interval_ms=config.integer("metadata.log.max.snapshot.interval.ms"),
    )
    transport = RaftTransport(
        loop,
        config.node_id,
        cluster_id,
        listener=config.controller_listener_names[0],
        endpoint=endpoint,
        bootstrap=bootstrap_addresses(config),
        request_timeout_ms=config.integer("controller.quorum.request.timeout.ms"),
        security=security.outbound(config.controller_listener_names[0]),
    )
    raft = RaftDriver(
        raft_config(config, cluster_id, logs.directory_ids[config.metadata_log_dir]),
        environment.clock,
        environment.random,
        snapshotter,
        transport,
        on_fatal=fail,
        disk=environment.disk,
        threads=environment.threads,
    )
    # The driver sends through the transport, and the transport delivers to the driver: one of them gets the other after
    # its construction.
    transport.attach(raft)
    membership = QuorumMembership(
        loop,
        raft,
        transport,
        cluster_id=cluster_id,
        endpoint=endpoint,
        auto_join=config.flag("controller.quorum.auto.join.enable"),
    )
    return QuorumMember(loader, snapshotter, transport, raft, membership)


def make_replicas(
    config: NodeConfig,
    environment: Environment,
    logs: LogManager,
    turn: LoopTurn,
    security: NodeSecurity,
    *,
    fail: Fail,
) -> ReplicaManager:
    """Make the replicas, whose appends are written once per turn of the loop, before the replies of the turn leave."""
    settings = replace(replication_config(config), security=security.outbound(config.inter_broker_listener_name))
    replicas = ReplicaManager(config.node_id, logs, environment.clock, settings, schedule_write=turn.schedule)
    # A turn whose write raises leaves replies without a write behind them, so the node stops.
    turn.before_flush(replicas.write_staged, fail)
    return replicas


def make_access_control(config: NodeConfig, quorum: QuorumMember) -> AccessControl | None:
    """Make the authorizer, which follows the metadata log from its first record; None without one."""
    if config.text("authorizer.class.name") != STANDARD_AUTHORIZER:
        return None
    authorizer = StandardAuthorizer(
        super_users=parse_super_users(config.static),
        allow_everyone_if_no_acl_found=config.static.get("allow.everyone.if.no.acl.found", "").strip().lower()
        == "true",
        ready=False,
    )
    access = AccessControl(authorizer, quorum.raft)
    quorum.loader.add_publisher(access)
    return access


def make_quotas(config: NodeConfig, environment: Environment, quorum: QuorumMember, net: NetServer) -> BrokerQuotas:
    """Make the quotas of clients, which follow the metadata log from its first record."""
    quotas = BrokerQuotas(client_quota_window(config), environment.clock, net, system_cpu_ns)
    quorum.loader.add_publisher(quotas)
    return quotas


def make_controller_link(
    loop: asyncio.AbstractEventLoop,
    config: NodeConfig,
    environment: Environment,
    quorum: QuorumMember,
    rules: ControllerConfig,
    *,
    wait_applied: Callable[[int], Awaitable[None]],
    on_heartbeat_lost: Callable[[], None],
) -> ControllerLink:
    """Make this node's own controller and its channels to the active one."""
    # Nodes are super users, so requests that a node makes for itself are authorised as one; which one does not matter.
    super_users = parse_super_users(config.static)
    own_principal = parse_principal(super_users[0]) if super_users else ANONYMOUS
    runtime = ControllerRuntime(
        partial(Controller, rules, CatalogValidator(config.static), environment.random),
        quorum.raft,
        quorum.loader,
        environment.clock,
        Duties(
            config.flag("auto.leader.rebalance.enable"),
            config.integer("leader.imbalance.check.interval.seconds") * 1000,
            config.integer("unclean.leader.election.interval.ms"),
            config.integer("delegation.token.expiry.check.interval.ms"),
        ),
        raise_kraft_version=quorum.membership.raise_kraft_version,
    )
    link = ControllerLink(
        loop,
        quorum.raft,
        runtime,
        quorum.transport,
        wait_applied=wait_applied,
        on_heartbeat_lost=on_heartbeat_lost,
        own_client=ForwardedClient(principal=encode_principal(own_principal)),
    )
    # Watchers are called in this order, and `make_lifecycle` adds one: a heartbeat to a new leader needs a link that
    # already points to it.
    quorum.snapshotter.add_leader_watcher(link.on_leader_change)
    return link


def make_lifecycle(
    config: NodeConfig,
    environment: Environment,
    logs: LogManager,
    quorum: QuorumMember,
    controllers: ControllerLink,
    heartbeat_due: asyncio.Event,
    *,
    fail: Fail,
) -> BrokerLifecycle:
    """Make the registration and the heartbeats of this node's broker."""
    lifecycle = BrokerLifecycle(
        config.node_id,
        logs.cluster_id or "",
        environment.new_uuid,
        controllers.heartbeat,
        quorum.loader,
        heartbeat_due=heartbeat_due,
        offline_log_dirs=logs.offline_directory_ids,
        on_replaced=fail,
        heartbeat_interval_ms=config.integer("broker.heartbeat.interval.ms"),
        session_timeout_ms=config.integer("broker.session.timeout.ms"),
        registration_timeout_ms=config.integer("initial.broker.registration.timeout.ms"),
    )
    quorum.snapshotter.add_leader_watcher(lifecycle.on_leader_change)
    return lifecycle
