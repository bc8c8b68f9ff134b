"""BrokerRegistration, v0-4: a broker enters the cluster.

v1 ZooKeeper migration · v2 log dirs · v3 epoch of the last registration · v4 features whose minimum level is 0
"""

from klamm.protocol.schema import array, boolean, int16, int32, int64, message, string, struct, uint16, uuid, wire


@struct
class Listener:
    """An address of the broker."""

    name: str = wire(string)
    host: str = wire(string)
    port: int = wire(uint16)
    security_protocol: int = wire(int16)


@struct
class Feature:
    """A feature and the levels the broker could run at."""

    name: str = wire(string)
    min_supported_version: int = wire(int16)
    max_supported_version: int = wire(int16)


@message(api_key=62, versions=(0, 4), flexible=0)
class BrokerRegistrationRequest:
    """The broker's identity, listeners, directories and supported features."""

    broker_id: int = wire(int32)
    cluster_id: str = wire(string)
    incarnation_id: bytes = wire(uuid)
    listeners: list[Listener] = wire(array(Listener))
    features: list[Feature] = wire(array(Feature))
    rack: str | None = wire(string, nullable=0)
    # Refused when set: ZooKeeper migration ended with Kafka 4.0.
    is_migrating_zk_broker: bool = wire(boolean, since=1)
    log_dirs: list[bytes] = wire(array(uuid), since=2)
    # The epoch at the last clean shutdown; any other value counts as an unclean one (KIP-966).
    previous_broker_epoch: int = wire(int64, since=3, default=-1)


@message(api_key=62, versions=(0, 4), flexible=0)
class BrokerRegistrationResponse:
    """The broker epoch of this registration."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    broker_epoch: int = wire(int64, default=-1)
