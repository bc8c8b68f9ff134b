"""Administration: one class, one file per family of questions; values in `types`.

Every method returns plain values and raises KafkaError. One that acts on several things raises the error itself when a
single one was asked for, and SomeFailed, which tells failures and results apart, when there were more. What takes
several things takes a list of them: a single one is a TypeError, before anything is asked.
"""

from klamm.client.admin.acls import AccessAdmin
from klamm.client.admin.cluster import ClusterAdmin
from klamm.client.admin.configs import ConfigsAdmin
from klamm.client.admin.groups import GroupsAdmin
from klamm.client.admin.replicas import ReplicasAdmin
from klamm.client.admin.topics import TopicsAdmin
from klamm.client.admin.transactions import TransactionsAdmin
from klamm.client.arguments import checked


@checked
class AsyncAdmin(TopicsAdmin, ConfigsAdmin, GroupsAdmin, AccessAdmin, ReplicasAdmin, TransactionsAdmin, ClusterAdmin):
    """Everything an operator asks of a cluster.

    async with AsyncAdmin(bootstrap_servers="localhost:9092") as admin:
        await admin.create_topic("orders", num_partitions=6)
    """


__all__ = ["AsyncAdmin"]
