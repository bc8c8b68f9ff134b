"""kafka-cluster: the cluster's id, its endpoints, and unregistering a broker that is gone for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.cli.kafka.options import BOOTSTRAP, Flag, Flags, Parsed
from klamm.cli.kafka.script import ToolFailed, connect, java_error, read_flags
from klamm.model.errors import ErrorCode, KlammError

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

FLAGS: Final = Flags(
    "kafka-cluster",
    BOOTSTRAP,
    Flag("bootstrap-controller", "Controllers to begin with.", "addresses", letter="C"),
    Flag("config", "A properties file with client settings.", "file", letter="c"),
    Flag("command-config", "A properties file with client settings.", "file"),
    Flag("id", "With unregister: the broker.", "number", letter="i"),
    Flag("include-fenced-brokers", "With list-endpoints: fenced brokers too."),
)
COMMANDS: Final = ("cluster-id", "unregister", "list-endpoints")
_USAGE: Final = "usage: kafka-cluster [-h] {cluster-id,unregister,list-endpoints} ...\nkafka-cluster: error: "


def main(args: list[str]) -> int:
    """Run kafka-cluster."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    if not parsed.rest:
        raise ToolFailed(_USAGE + "too few arguments")
    command = parsed.rest[0]
    if command not in COMMANDS:
        choices = ", ".join(f"'{name}'" for name in COMMANDS)
        raise ToolFailed(f"{_USAGE}invalid choice: '{command}' (choose from {choices})")
    if not (parsed.text("bootstrap-server") or parsed.text("bootstrap-controller")):
        raise ToolFailed(_USAGE + "one of the arguments --bootstrap-server --bootstrap-controller is required")
    if command == "unregister" and not parsed.has("id"):
        raise ToolFailed(_USAGE + "argument --id/-i is required")
    with connect(parsed, "config") as cluster:
        if command == "cluster-id":
            print(f"Cluster ID: {cluster.cluster_id}")
        elif command == "unregister":
            _unregister(cluster, parsed.integer("id") or 0)
        else:
            _list_endpoints(cluster, parsed)
    return 0


def _unregister(cluster: BlockingCluster, broker_id: int) -> None:
    from klamm.cli.queries.cluster import unregister_broker

    try:
        unregister_broker(cluster, broker_id)
    except KlammError as error:
        if error.code == ErrorCode.UNSUPPORTED_VERSION:
            raise ToolFailed("The target cluster does not support the broker unregistration API.", out=True) from None
        raise ToolFailed(java_error(error)) from None
    print(f"Broker {broker_id} is no longer registered.")


def _list_endpoints(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.cluster import describe_cluster

    nodes = describe_cluster(cluster, include_fenced=parsed.has("include-fenced-brokers")).brokers
    width = max((len(node.host) for node in nodes), default=0)
    rows = [("ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE")]
    kind = "controller" if cluster.has_controllers else "broker"
    for node in nodes:
        state = "fenced" if node.fenced else "unfenced"
        rows.append((str(node.id), node.host, str(node.port), node.rack or "null", state, kind))
    for node_id, host, port, rack, state, endpoint in rows:
        # Controllers cannot be fenced, so their table has no STATE column.
        shown = "" if cluster.has_controllers else f"{state:<10} "
        print(f"{node_id:<10} {host:<{width}} {port:<10} {rack:<10} {shown}{endpoint:<15}")
