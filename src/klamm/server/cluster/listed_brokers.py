"""The brokers that Metadata lists: the live ones, and for a while those that were fenced recently.

A broker whose process dies is fenced at once, and its leaders move at once. It stays listed for
`broker.session.timeout.ms` more, as long as Kafka would have listed it. Clients depend on that: librdkafka (2.16)
removes a broker when a response leaves it out, but keeps it as the coordinator of a group in another table. A producer
that sends offsets to its transaction then waits for that broker until the transaction times out. While the broker is
still listed, the client notices that it cannot connect, and looks for the new coordinator.
"""

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import BrokerImage, ClusterImage, MetadataImage
from klamm.model.clock import Clock


class ListedBrokers:
    """Follows the cluster's brokers and keeps the time until which a fenced one is listed."""

    def __init__(self, clock: Clock, keep_ms: int) -> None:
        self._clock = clock
        self._keep_ms = keep_ms
        self._until: dict[int, int] = {}

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Keep listing brokers that this change fences."""
        before, after = delta.image.cluster, image.cluster
        # Most changes concern topics; images share the parts that did not change.
        if before is after:
            return
        for broker in after.brokers.values():
            if not broker.fenced:
                self._until.pop(broker.id, None)
            elif (previous := before.get(broker.id)) is not None and not previous.fenced:
                self._until[broker.id] = self._clock.monotonic_ms() + self._keep_ms
        for unregistered in self._until.keys() - after.brokers.keys():
            del self._until[unregistered]

    def list_brokers(self, cluster: ClusterImage) -> list[BrokerImage]:
        """Return the brokers for Metadata responses; all of them when all are fenced, as while a cluster stops.

        A response without brokers makes librdkafka (2.16) drop all brokers. It restarts from its bootstrap servers
        when the number of brokers that are down equals that of all brokers, which it sometimes misses, and then never.
        """
        alive = cluster.alive()
        if not alive:
            return [broker for broker in cluster.brokers.values() if broker.endpoints]
        if not self._until:
            return alive
        now = self._clock.monotonic_ms()
        # Expired here, not by a timer: the map is read only here.
        self._until = {broker_id: until for broker_id, until in self._until.items() if until > now}
        fenced = [cluster.get(broker_id) for broker_id in self._until]
        return alive + [broker for broker in fenced if broker is not None and broker.fenced and broker.endpoints]
