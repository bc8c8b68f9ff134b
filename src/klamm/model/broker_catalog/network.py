"""Settings of listeners, sockets and connections."""

from typing import Final

from klamm.model.config import MAX_INT, ConfigKey, ConfigType, Importance, UpdateMode
from klamm.model.config_rules import at_least, list_of

NETWORK: Final = (
    ConfigKey(
        "listeners",
        ConfigType.LIST,
        ("PLAINTEXT://:9092",),
        "Addresses the node listens on, as NAME://host:port; an empty host means every interface.",
        rule=list_of(empty=False),
        importance=Importance.HIGH,
        update_mode=UpdateMode.PER_BROKER,
        served=True,
    ),
    ConfigKey(
        "advertised.listeners",
        ConfigType.LIST,
        None,
        "Addresses sent to clients, when they differ from listeners.",
        rule=list_of(empty=False),
        importance=Importance.HIGH,
        served=True,
    ),
    # Kafka's default text, order included: DescribeConfigs returns it.
    ConfigKey(
        "listener.security.protocol.map",
        ConfigType.STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Security protocol of every listener name.",
        importance=Importance.LOW,
        update_mode=UpdateMode.PER_BROKER,
        served=True,
    ),
    ConfigKey(
        "socket.send.buffer.bytes",
        ConfigType.INT,
        102_400,
        "SO_SNDBUF of client sockets; -1 uses the operating system's default.",
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        "socket.receive.buffer.bytes",
        ConfigType.INT,
        102_400,
        "SO_RCVBUF of client sockets; -1 uses the operating system's default.",
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        "socket.request.max.bytes",
        ConfigType.INT,
        104_857_600,
        "Largest request a client may send.",
        rule=at_least(1),
        importance=Importance.HIGH,
        served=True,
    ),
    # KIP-764.
    ConfigKey(
        "socket.listen.backlog.size",
        ConfigType.INT,
        50,
        "Connections that may wait to be accepted.",
        rule=at_least(1),
        served=True,
    ),
    ConfigKey(
        "max.connections.per.ip",
        ConfigType.INT,
        MAX_INT,
        "Most connections of one client address.",
        rule=at_least(0),
        update_mode=UpdateMode.CLUSTER_WIDE,
        served=True,
    ),
    ConfigKey(
        "max.connections.per.ip.overrides",
        ConfigType.STRING,
        "",
        "Limits of single addresses, as host:number,...",
        update_mode=UpdateMode.CLUSTER_WIDE,
        served=True,
    ),
    # KIP-402.
    ConfigKey(
        "max.connections",
        ConfigType.INT,
        MAX_INT,
        "Most connections of the broker.",
        rule=at_least(0),
        update_mode=UpdateMode.CLUSTER_WIDE,
        served=True,
    ),
    # KIP-612.
    ConfigKey(
        "max.connection.creation.rate",
        ConfigType.INT,
        MAX_INT,
        "Most new connections per second.",
        rule=at_least(0),
        update_mode=UpdateMode.CLUSTER_WIDE,
        served=True,
    ),
    # A minute more than the clients' default: clients close first, with no request in flight.
    ConfigKey(
        "connections.max.idle.ms",
        ConfigType.LONG,
        600_000,
        "Time without traffic after which a connection is closed.",
        served=True,
    ),
    # KIP-306: against clients that retry a wrong password in a loop.
    ConfigKey(
        "connection.failed.authentication.delay.ms",
        ConfigType.INT,
        100,
        "Delay of the response to a failed authentication.",
        rule=at_least(0),
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "queued.max.requests",
        ConfigType.INT,
        500,
        "Requests that may be queued before reading from clients stops.",
        rule=at_least(1),
        importance=Importance.HIGH,
    ),
    # KIP-72.
    ConfigKey(
        "queued.max.request.bytes",
        ConfigType.LONG,
        -1,
        "Bytes of queued requests before reading from clients stops; -1 sets no limit.",
        served=True,
    ),
    ConfigKey(
        "num.network.threads",
        ConfigType.INT,
        3,
        "Threads that serve sockets; Klamm uses one event loop.",
        rule=at_least(1),
        importance=Importance.HIGH,
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    # KIP-601: without it the operating system's SYN retries take minutes.
    ConfigKey(
        "socket.connection.setup.timeout.ms",
        ConfigType.LONG,
        10_000,
        "First timeout for opening a connection to another node.",
    ),
    ConfigKey(
        "socket.connection.setup.timeout.max.ms",
        ConfigType.LONG,
        30_000,
        "Longest timeout for opening a connection, after repeated failures.",
    ),
)
