"""Which brokers Metadata names: the live ones, and for a while those that were live a moment ago.

A broker whose process dies is fenced at once, and its leaders move at once. Its address stays in the answers for
`broker.session.timeout.ms` more, as long as Kafka itself would have listed it. Clients rely on that time: librdkafka
(2.16) throws a broker away when an answer leaves it out, but keeps it as the coordinator of a group in another table;
a producer that sends offsets to its transaction then waits for that broker until the transaction runs out. While the
broker is still listed the client notices that it cannot connect, and asks who coordinates now.
"""

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import BrokerImage, ClusterImage, MetadataImage
from klamm.model.clock import Clock


class ListedBrokers:
    """Follows the cluster's brokers and remembers until when each that left is still named."""

    def __init__(self, clock: Clock, keep_ms: int) -> None:
        self._clock = clock
        self._keep_ms = keep_ms
        self._until: dict[int, int] = {}

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Brokers that were live before this step and are fenced after it stay a while."""
        before, after = delta.image.cluster, image.cluster
        if before is after:
            return
        for broker in after.brokers.values():
            if not broker.fenced:
                self._until.pop(broker.id, None)
            elif (known := before.get(broker.id)) is not None and not known.fenced:
                self._until[broker.id] = self._clock.monotonic_ms() + self._keep_ms
        for gone in self._until.keys() - after.brokers.keys():
            del self._until[gone]

    def listed(self, cluster: ClusterImage) -> list[BrokerImage]:
        """The brokers clients are told about. When all are fenced, as while a whole cluster stops, all there are.

        An answer without brokers makes librdkafka (2.16) forget every one it knew. It begins anew from its bootstrap
        servers when the count of those that are down comes to the count of all, which it sometimes misses; then never.
        """
        alive = cluster.alive()
        if not alive:
            return [broker for broker in cluster.brokers.values() if broker.endpoints]
        if not self._until:
            return alive
        now = self._clock.monotonic_ms()
        self._until = {broker_id: until for broker_id, until in self._until.items() if until > now}
        left = [cluster.get(broker_id) for broker_id in self._until]
        return alive + [broker for broker in left if broker is not None and broker.fenced and broker.endpoints]
