"""BrokerRegistration, v0-4: a broker enters the cluster.

v1 ZooKeeper migration · v2 log dirs · v3 epoch of the last life · v4 features whose minimum level is 0
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
    """Say who the broker is, where it listens and what it can do."""

    broker_id: int = wire(int32)
    cluster_id: str = wire(string)
    incarnation_id: bytes = wire(uuid)
    listeners: list[Listener] = wire(array(Listener))
    features: list[Feature] = wire(array(Feature))
    rack: str | None = wire(string, nullable=0)
    is_migrating_zk_broker: bool = wire(boolean, since=1)
    log_dirs: list[bytes] = wire(array(uuid), since=2)
    previous_broker_epoch: int = wire(int64, since=3, default=-1)


@message(api_key=62, versions=(0, 4), flexible=0)
class BrokerRegistrationResponse:
    """The broker's epoch, which names this life of it."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    broker_epoch: int = wire(int64, default=-1)
