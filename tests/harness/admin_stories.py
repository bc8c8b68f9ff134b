"""Scenarios of Klamm's admin beyond topics and groups, for any broker that supports them.

`client_stories` has the rest. MOVING wants two brokers or more with two log dirs each; ACCESS a broker with an
authorizer, and one without gets GUARDED instead. Every method of `Admin` is in a story.
"""

import contextlib
from collections.abc import Callable
from functools import partial

import pytest

from harness.client_stories import PATIENCE_S, Story, read_all, topic, until
from harness.wire import unique
from klamm.client import Admin, NewTopic, Producer, TopicPartition
from klamm.client.admin.types import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    ConfigResource,
    ElectionType,
    PatternType,
    ResourceType,
    ScramCredential,
    ScramMechanism,
    UpgradeType,
)
from klamm.client.errors import (
    ErrorCode,
    InvalidRequestError,
    KafkaError,
    SomeFailed,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)


def _refused(code: ErrorCode, call: Callable[[], object]) -> None:
    with pytest.raises(KafkaError) as refusal:
        call()
    assert refusal.value.code is code, refusal.value


# One broker


def an_admin_asks_what_it_may_do(bootstrap: str) -> None:
    name, group = topic(bootstrap), unique("group")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.alter_group_offsets(group, {TopicPartition(name, 0): 0})
        allowed = admin.describe_topics([name], authorized_operations=True)[name].authorized_operations
        assert allowed is not None
        assert {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE} <= allowed
        allowed = admin.describe_groups([group], authorized_operations=True)[group].authorized_operations
        assert allowed is not None
        assert {AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE} <= allowed
        assert admin.describe_groups([group])[group].authorized_operations is None
        allowed = admin.describe_cluster(authorized_operations=True).authorized_operations
        assert allowed is not None
        assert {AclOperation.CREATE, AclOperation.ALTER} <= allowed
        assert admin.describe_cluster().authorized_operations is None


def groups_of_kafka_4_are_refused_by_name(bootstrap: str) -> None:
    """A broker without these groups does not serve the request; one that has them does not know this one."""
    group = unique("group")
    refusals = {ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_ID_NOT_FOUND}
    with Admin(bootstrap_servers=bootstrap) as admin:
        for describe in (
            lambda: admin.describe_share_groups([group]),
            lambda: admin.describe_streams_groups([group]),
        ):
            with pytest.raises(KafkaError) as refusal:
                describe()
            assert refusal.value.code in refusals, refusal.value
        # Kafka answers with no offsets.
        offsets = {}
        with contextlib.suppress(UnsupportedVersionError):
            offsets = admin.list_share_group_offsets(group)
        assert offsets == {}


def an_admin_ends_a_transaction_by_hand(bootstrap: str) -> None:
    name = topic(bootstrap)
    where = TopicPartition(name, 0)
    with Admin(bootstrap_servers=bootstrap) as admin, _hanging(bootstrap) as producer:
        producer.send(name, b"left open").result(PATIENCE_S)
        (state,) = admin.describe_producers([where])[where]
        assert state.transaction_start_offset == 0
        with Producer(bootstrap_servers=bootstrap) as other:
            other.send(name, b"behind it").result(PATIENCE_S)
        admin.abort_transaction(where, state.producer_id, state.producer_epoch, max(state.coordinator_epoch, 0))
        committed = read_all(bootstrap, name, 1, isolation_level="read_committed")
        assert [record.value for record in committed] == [b"behind it"]
        states = admin.describe_producers([where])[where]
        assert [state for state in states if state.transaction_start_offset is not None] == []


def _hanging(bootstrap: str) -> Producer:
    """A producer inside of a transaction that it never ends."""
    producer = Producer(bootstrap_servers=bootstrap, transactional_id=unique("tx"))
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def an_admin_sets_feature_levels(bootstrap: str) -> None:
    name = "eligible.leader.replicas.version"

    with Admin(bootstrap_servers=bootstrap) as admin:

        def level() -> int:
            return admin.describe_features().finalized.get(name, 0)

        assert admin.describe_features().supported[name] == (0, 1)
        admin.update_features({name: 0}, upgrade=UpgradeType.SAFE_DOWNGRADE, validate_only=True)
        assert level() == 1
        admin.update_features({name: 0}, upgrade=UpgradeType.SAFE_DOWNGRADE)
        until(lambda: level() == 0, "the feature is off")
        admin.update_features({name: 1})
        until(lambda: level() == 1, "the feature is on again")
        with pytest.raises(KafkaError, match="99"):
            admin.update_features({name: 99})
        assert admin.describe_features().epoch >= 0


def settings_of_groups_are_kept(bootstrap: str) -> None:
    group = ConfigResource.group(unique("group"))
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.alter_configs({group: {"consumer.session.timeout.ms": 50_000}}, validate_only=True)
        assert admin.describe_configs([group])[group]["consumer.session.timeout.ms"].value != "50000"
        admin.alter_configs({group: {"consumer.session.timeout.ms": 50_000}})
        until(
            lambda: admin.describe_configs([group])[group]["consumer.session.timeout.ms"].value == "50000",
            "the group has its setting",
        )
        with pytest.raises(InvalidRequestError):
            admin.alter_configs({group: {"no.such.setting": "1"}})


def what_has_settings_is_listed(bootstrap: str) -> None:
    group = ConfigResource.group(unique("group"))
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.alter_configs({group: {"consumer.session.timeout.ms": 50_000}})
        until(lambda: group in admin.list_config_resources([ResourceType.GROUP]), "the group is listed")
        broker = ConfigResource.broker(admin.describe_cluster().brokers[0].id)
        assert {group, broker} <= set(admin.list_config_resources())


ONE_BROKER: dict[str, Story] = {
    story.__name__: story
    for story in (
        an_admin_asks_what_it_may_do,
        groups_of_kafka_4_are_refused_by_name,
        an_admin_ends_a_transaction_by_hand,
        an_admin_sets_feature_levels,
        settings_of_groups_are_kept,
        what_has_settings_is_listed,
    )
}


# Two brokers, two log dirs each


def _placed(admin: Admin, *replicas: int) -> TopicPartition:
    """A partition that lies on these brokers."""
    name = unique("placed")
    admin.create_topics([NewTopic(name, replica_assignment={0: list(replicas)})])
    where = TopicPartition(name, 0)
    until(lambda: _partition(admin, where).leader == replicas[0], "the partition is led")
    return where


def _partition(admin: Admin, where: TopicPartition):
    try:
        return admin.describe_topics([where.topic])[where.topic].partitions[where.partition]
    except UnknownTopicOrPartitionError:
        return _partition(admin, where)


def replicas_move_and_moves_are_taken_back(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        one, two = sorted(broker.id for broker in admin.describe_cluster().brokers)[:2]
        where = _placed(admin, one)
        with Producer(bootstrap_servers=bootstrap, max_request_size=10_000_000) as producer:
            for _ in range(6):
                producer.send(where.topic, b"x" * 900_000).result(PATIENCE_S)
        slowly = {
            ConfigResource.topic(where.topic): {
                "leader.replication.throttled.replicas": "*",
                "follower.replication.throttled.replicas": "*",
            },
            **{
                ConfigResource.broker(broker): {
                    "leader.replication.throttled.rate": 1000,
                    "follower.replication.throttled.rate": 1000,
                }
                for broker in (one, two)
            },
        }
        admin.alter_configs(slowly)
        admin.alter_partition_reassignments({where: [two]})
        move = admin.list_partition_reassignments([where])[where]
        assert (set(move.replicas), move.adding, move.removing) == ({one, two}, (two,), (one,))
        assert where in admin.list_partition_reassignments()
        admin.alter_partition_reassignments({where: None})
        until(lambda: not admin.list_partition_reassignments([where]), "the move is taken back")
        until(lambda: _partition(admin, where).replicas == (one,), "the partition is where it was")
        _refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, lambda: admin.alter_partition_reassignments({where: None}))
        admin.alter_configs({resource: dict.fromkeys(settings) for resource, settings in slowly.items()})
        admin.alter_partition_reassignments({where: [two]})
        until(lambda: _partition(admin, where).replicas == (two,), "the partition has moved")
        assert not admin.list_partition_reassignments()
        latest = admin.list_offsets({where: -1})[where]
        assert latest.offset == 6
        with pytest.raises(SomeFailed) as failed:
            admin.alter_partition_reassignments({where: [two, 99], (unique("nowhere"), 0): [one]})
        assert len(failed.value.failures) == 2


def preferred_leaders_are_elected(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        one, two = sorted(broker.id for broker in admin.describe_cluster().brokers)[:2]
        where = _placed(admin, one, two)
        until(lambda: len(_partition(admin, where).isr) == 2, "both are in sync")
        admin.alter_partition_reassignments({where: [two, one]})
        until(lambda: _partition(admin, where).replicas[0] == two, "the other is preferred")
        assert _partition(admin, where).leader == one
        assert admin.elect_leaders([where]) == {where: True}
        until(lambda: _partition(admin, where).leader == two, "the preferred replica leads")
        assert admin.elect_leaders([where], ElectionType.PREFERRED) == {where: False}
        assert admin.elect_leaders([where], ElectionType.UNCLEAN) == {where: False}
        assert not any(admin.elect_leaders().values())
        nowhere = TopicPartition(unique("nowhere"), 0)
        _refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lambda: admin.elect_leaders([nowhere]))


def replicas_change_their_directory(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        broker = min(node.id for node in admin.describe_cluster().brokers)
        where = _placed(admin, broker)
        with Producer(bootstrap_servers=bootstrap) as producer:
            producer.send(where.topic, b"moves along").result(PATIENCE_S)

        def homes() -> dict[str, bool]:
            """The directories it lies in, and whether that is only its future there."""
            dirs = admin.describe_log_dirs([broker])[broker]
            return {
                directory.path: directory.replicas[where].is_future for directory in dirs if where in directory.replicas
            }

        (before,) = homes()
        (other,) = {log_dir.path for log_dir in admin.describe_log_dirs([broker])[broker]} - {before}
        admin.alter_replica_log_dirs({(where, broker): other})
        until(lambda: homes() == {other: False}, "the replica lies in the other directory")
        assert [record.value for record in read_all(bootstrap, where.topic, 1)] == [b"moves along"]
        _refused(ErrorCode.LOG_DIR_NOT_FOUND, lambda: admin.alter_replica_log_dirs({(where, broker): "/there/is/none"}))


def nobody_unknown_is_unregistered(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        _refused(ErrorCode.BROKER_ID_NOT_REGISTERED, lambda: admin.unregister_broker(99))


MOVING: dict[str, Story] = {
    story.__name__: story
    for story in (
        replicas_move_and_moves_are_taken_back,
        preferred_leaders_are_elected,
        replicas_change_their_directory,
        nobody_unknown_is_unregistered,
    )
}


# A quorum that changes


def voters_come_and_go(bootstrap: str, voter: int, listener: tuple[str, str, int]) -> None:
    """Of a quorum that the broker `voter` follows without a vote."""
    with Admin(bootstrap_servers=bootstrap) as admin:

        def voters() -> set[int]:
            return {replica.replica_id for replica in admin.describe_quorum().voters}

        def watching() -> bytes | None:
            directories = [
                observer.directory_id for observer in admin.describe_quorum().observers if observer.replica_id == voter
            ]
            return directories[0] if directories else None

        directory = until(watching, "the node follows the quorum")
        assert isinstance(directory, bytes)
        before = voters()
        assert voter not in before
        admin.add_raft_voter(voter, directory, [listener])
        until(lambda: voters() == before | {voter}, "the node votes")
        assert admin.describe_quorum().nodes[voter] == (listener,)
        _refused(ErrorCode.DUPLICATE_VOTER, partial(admin.add_raft_voter, voter, directory, [listener]))
        admin.remove_raft_voter(voter, directory)
        until(lambda: voters() == before, "the node votes no more")
        _refused(ErrorCode.VOTER_NOT_FOUND, lambda: admin.remove_raft_voter(voter, directory))


# Access: rules, limits, passwords


def access_rules_are_kept_found_and_deleted(bootstrap: str) -> None:
    name = unique("rules")
    user = f"User:{unique('anna')}"
    read = AclBinding(AclResourceType.TOPIC, name, user, AclOperation.READ)
    deny = AclBinding(
        AclResourceType.GROUP, name, user, AclOperation.ALL, AclPermission.DENY, "127.0.0.1", PatternType.PREFIXED
    )
    mine = AclFilter(principal=user)
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert admin.describe_acls(mine) == []
        admin.create_acls([read, deny])
        admin.create_acls([read])
        admin.create_acls([])
        until(lambda: len(admin.describe_acls(mine)) == 2, "both rules are there")
        assert admin.describe_acls(mine) == sorted([read, deny])
        assert set(admin.describe_acls()) >= {read, deny}
        assert admin.describe_acls(AclFilter(AclResourceType.TOPIC, name)) == [read]
        matching = AclFilter(AclResourceType.GROUP, f"{name}-7", pattern_type=PatternType.MATCH)
        assert admin.describe_acls(matching) == [deny]
        assert admin.describe_acls(AclFilter(permission=AclPermission.DENY, principal=user)) == [deny]
        cluster = read._replace(resource_type=AclResourceType.CLUSTER, resource_name="not-the-cluster")
        with pytest.raises(KafkaError):
            admin.create_acls([cluster])
        assert admin.delete_acls([]) == []
        assert admin.delete_acls([AclFilter(operation=AclOperation.READ, principal=user)]) == [read]
        assert admin.delete_acls([mine]) == [deny]
        assert admin.delete_acls([mine]) == []
        until(lambda: not admin.describe_acls(mine), "no rule is left")


def quotas_are_set_found_and_taken_away(bootstrap: str) -> None:
    user, client = unique("anna"), unique("app")
    pair = (("client-id", client), ("user", user))
    of_user, of_all = (("user", user),), (("user", None),)
    with Admin(bootstrap_servers=bootstrap) as admin:
        rates = {"producer_byte_rate": 1_000_000.0, "consumer_byte_rate": 2_000_000.0}
        admin.alter_client_quotas({of_user: rates}, validate_only=True)
        assert admin.describe_client_quotas({"user": user}) == {}
        admin.alter_client_quotas({of_user: rates, pair: {"request_percentage": 50}, of_all: {"producer_byte_rate": 5}})
        until(lambda: len(admin.describe_client_quotas({"user": user})) == 2, "the user's and the pair's")
        assert admin.describe_client_quotas({"user": user}, strict=True) == {of_user: rates}
        assert admin.describe_client_quotas({"user": user}) == {of_user: rates, pair: {"request_percentage": 50.0}}
        assert admin.describe_client_quotas({"user": None}) == {of_all: {"producer_byte_rate": 5.0}}
        assert {of_user, pair} <= admin.describe_client_quotas({"user": "*"}).keys()
        assert of_user in admin.describe_client_quotas()
        _refused(ErrorCode.INVALID_REQUEST, lambda: admin.alter_client_quotas({of_user: {"no_such_rate": 1.0}}))
        admin.alter_client_quotas(
            {
                of_user: dict.fromkeys(rates),
                pair: {"request_percentage": None},
                of_all: {"producer_byte_rate": None},
            }
        )
        until(lambda: not admin.describe_client_quotas({"user": user}), "none is left")


def passwords_are_set_and_taken_away(bootstrap: str) -> None:
    anna, berta = unique("anna"), unique("berta")
    small, large = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert admin.describe_user_scram_credentials([anna]) == {anna: []}
        admin.alter_user_scram_credentials({(anna, small): "secret", (berta, large): "hidden"}, iterations=8192)
        admin.alter_user_scram_credentials({(anna, large): "secret"})
        credentials = {anna: [ScramCredential(small, 8192), ScramCredential(large, 4096)]}
        until(lambda: admin.describe_user_scram_credentials([anna]) == credentials, "anna has two")
        assert admin.describe_user_scram_credentials().keys() >= {anna, berta}
        _refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            lambda: admin.alter_user_scram_credentials({(anna, small): "x"}, iterations=7),
        )
        admin.alter_user_scram_credentials(delete=[(anna, small), (berta, large)])
        until(lambda: admin.describe_user_scram_credentials([anna])[anna] == credentials[anna][1:], "anna has one")
        admin.alter_user_scram_credentials(delete=[(anna, large)])
        until(lambda: anna not in admin.describe_user_scram_credentials(), "anna is gone")
        _refused(ErrorCode.RESOURCE_NOT_FOUND, lambda: admin.alter_user_scram_credentials(delete=[(anna, large)]))


def tokens_need_a_login(bootstrap: str) -> None:
    """On a listener without authentication, or a broker without a secret key; logins are in tests of the server."""
    refusals = {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED}
    with Admin(bootstrap_servers=bootstrap) as admin:
        for call in (
            lambda: admin.create_delegation_token(renewers=[_USER]),
            lambda: admin.renew_delegation_token(b"hmac"),
            lambda: admin.expire_delegation_token(b"hmac"),
            lambda: admin.describe_delegation_tokens([_USER]),
        ):
            with pytest.raises(KafkaError) as refusal:
                call()
            assert refusal.value.code in refusals, refusal.value


ACCESS: dict[str, Story] = {
    story.__name__: story
    for story in (
        access_rules_are_kept_found_and_deleted,
        quotas_are_set_found_and_taken_away,
        passwords_are_set_and_taken_away,
        tokens_need_a_login,
    )
}

_USER = "User:anna"
GUARDED: dict[str, Callable[[Admin], object]] = {
    "describe_acls": lambda admin: admin.describe_acls(),
    "create_acls": lambda admin: admin.create_acls([AclBinding(AclResourceType.TOPIC, "t", _USER, AclOperation.READ)]),
    "delete_acls": lambda admin: admin.delete_acls([AclFilter(principal=_USER)]),
}
"""What needs an authorizer."""


def needs_an_authorizer(bootstrap: str, call: Callable[[Admin], object]) -> None:
    """Both kinds of broker say so where they have none."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        _refused(ErrorCode.SECURITY_DISABLED, lambda: call(admin))
