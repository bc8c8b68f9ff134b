"""`Admin`: everything of `AsyncAdmin`, for code without an event loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.loop_thread import BlockingClient

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from klamm.client.settings import AdminSettings

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Admin, P], R]:
    """The same method, which blocks until its result is there."""

    def call(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(method(self._inner, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class Admin(BlockingClient):
    """Admin requests to a cluster, blocking.

    with Admin(bootstrap_servers="localhost:9092") as admin:
        admin.create_topic("orders", num_partitions=6)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Unpack[AdminSettings]) -> None:
        self._inner = AsyncAdmin(config, **settings)
        super().__init__(self._inner, "admin")

    request = _blocking(AsyncAdmin.request)

    list_topics = _blocking(AsyncAdmin.list_topics)
    describe_topics = _blocking(AsyncAdmin.describe_topics)
    describe_topics_by_metadata = _blocking(AsyncAdmin.describe_topics_by_metadata)
    create_topic = _blocking(AsyncAdmin.create_topic)
    create_topics = _blocking(AsyncAdmin.create_topics)
    delete_topics = _blocking(AsyncAdmin.delete_topics)
    create_partitions = _blocking(AsyncAdmin.create_partitions)
    delete_records = _blocking(AsyncAdmin.delete_records)
    list_offsets = _blocking(AsyncAdmin.list_offsets)
    list_available_offsets = _blocking(AsyncAdmin.list_available_offsets)
    partitions_of = _blocking(AsyncAdmin.partitions_of)

    describe_configs = _blocking(AsyncAdmin.describe_configs)
    alter_configs = _blocking(AsyncAdmin.alter_configs)
    list_config_resources = _blocking(AsyncAdmin.list_config_resources)

    list_groups = _blocking(AsyncAdmin.list_groups)
    describe_groups = _blocking(AsyncAdmin.describe_groups)
    delete_groups = _blocking(AsyncAdmin.delete_groups)
    list_group_offsets = _blocking(AsyncAdmin.list_group_offsets)
    alter_group_offsets = _blocking(AsyncAdmin.alter_group_offsets)
    delete_group_offsets = _blocking(AsyncAdmin.delete_group_offsets)
    remove_members = _blocking(AsyncAdmin.remove_members)
    describe_share_groups = _blocking(AsyncAdmin.describe_share_groups)
    list_share_group_offsets = _blocking(AsyncAdmin.list_share_group_offsets)
    describe_streams_groups = _blocking(AsyncAdmin.describe_streams_groups)

    describe_acls = _blocking(AsyncAdmin.describe_acls)
    create_acls = _blocking(AsyncAdmin.create_acls)
    delete_acls = _blocking(AsyncAdmin.delete_acls)
    describe_client_quotas = _blocking(AsyncAdmin.describe_client_quotas)
    alter_client_quotas = _blocking(AsyncAdmin.alter_client_quotas)
    describe_user_scram_credentials = _blocking(AsyncAdmin.describe_user_scram_credentials)
    alter_user_scram_credentials = _blocking(AsyncAdmin.alter_user_scram_credentials)
    create_delegation_token = _blocking(AsyncAdmin.create_delegation_token)
    renew_delegation_token = _blocking(AsyncAdmin.renew_delegation_token)
    expire_delegation_token = _blocking(AsyncAdmin.expire_delegation_token)
    describe_delegation_tokens = _blocking(AsyncAdmin.describe_delegation_tokens)

    elect_leaders = _blocking(AsyncAdmin.elect_leaders)
    alter_partition_reassignments = _blocking(AsyncAdmin.alter_partition_reassignments)
    list_partition_reassignments = _blocking(AsyncAdmin.list_partition_reassignments)
    describe_log_dirs = _blocking(AsyncAdmin.describe_log_dirs)
    alter_replica_log_dirs = _blocking(AsyncAdmin.alter_replica_log_dirs)

    list_transactions = _blocking(AsyncAdmin.list_transactions)
    describe_transactions = _blocking(AsyncAdmin.describe_transactions)
    describe_producers = _blocking(AsyncAdmin.describe_producers)
    abort_transaction = _blocking(AsyncAdmin.abort_transaction)
    fence_producers = _blocking(AsyncAdmin.fence_producers)

    describe_cluster = _blocking(AsyncAdmin.describe_cluster)
    describe_quorum = _blocking(AsyncAdmin.describe_quorum)
    add_raft_voter = _blocking(AsyncAdmin.add_raft_voter)
    remove_raft_voter = _blocking(AsyncAdmin.remove_raft_voter)
    unregister_broker = _blocking(AsyncAdmin.unregister_broker)
    describe_api_versions = _blocking(AsyncAdmin.describe_api_versions)
    describe_features = _blocking(AsyncAdmin.describe_features)
    update_features = _blocking(AsyncAdmin.update_features)
