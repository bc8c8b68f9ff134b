"""The kitchen and the bar: two topics, one of which must keep the order of its guests.

Starts a Klamm node, lets a plain Kafka client (confluent-kafka) send orders and read them back, and shows it all.
The kitchen has one partition, so every dish leaves in the order it was asked for. The bar has three: drinks of one
table, which share a key, keep their order; tables do not wait for each other. Needs no Java.

    python examples/restaurant.py
"""

import os
import signal
import socket
import subprocess
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

PORT = 9092
DATA = ".klamm-restaurant"
TABLES = ("Ada", "Grace", "Edsger", "Barbara")
DISHES = ("soup", "dumplings", "strudel")
DRINKS = ("water", "wine", "espresso")

console = Console(highlight=False)


def main() -> int:
    node = start_node()
    try:
        address = f"127.0.0.1:{node_port(node)}"
        run = f"{int(time.time())}"
        kitchen, bar = f"kitchen-{run}", f"bar-{run}"
        create_topics(address, {kitchen: 1, bar: 3})
        sent = send_orders(address, kitchen, bar)
        shown = {topic: read_back(address, topic, partitions) for topic, partitions in ((kitchen, 1), (bar, 3))}
        show("The kitchen (1 partition): dishes leave in the order of the orders", shown[kitchen])
        show("The bar (3 partitions): each table's drinks in order, tables side by side", shown[bar])
        check(sent, shown, kitchen, bar)
        console.print(
            f"\n[green]Every order arrived, in order by key.[/] The node serves any Kafka client on {address}."
        )
        if sys.stdin.isatty() and sys.stdout.isatty():
            console.print("Try:  kcat -b", address, "-L      Stop with Ctrl-C.")
            wait(node)
    finally:
        stop(node)
    return 0


def start_node() -> "subprocess.Popen[str]":
    port = PORT
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            console.print(f"Port {port} is taken, so this uses a free one.")
            port = 0
    console.print("Starting a node:  [bold]klamm up[/]")
    klamm = os.path.join(os.path.dirname(sys.executable), "klamm")
    return subprocess.Popen(  # noqa: S603 - our own program
        [klamm, "up", "--data", DATA, "--port", str(port), "--quiet", "--no-console"], stdout=subprocess.PIPE, text=True
    )


def node_port(node: "subprocess.Popen[str]") -> int:
    assert node.stdout is not None
    line = node.stdout.readline().strip()
    if not line:
        raise SystemExit("the node did not start; the sentence above says why")
    console.print(f"[bold]{line}[/]\n")
    return int(line.rpartition(":")[2])


def create_topics(address: str, topics: dict[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    wanted = [NewTopic(name, num_partitions=count, replication_factor=1) for name, count in topics.items()]
    for created in admin.create_topics(wanted).values():
        created.result(10)


def send_orders(address: str, kitchen: str, bar: str) -> list[tuple[str, str, str]]:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5})
    sent = []
    for course in range(len(DISHES)):
        for table in TABLES:
            for topic, menu in ((kitchen, DISHES), (bar, DRINKS)):
                producer.produce(topic, key=table, value=menu[course])
                sent.append((topic, table, menu[course]))
    if producer.flush(10):
        raise SystemExit("not every order was acknowledged")
    console.print(f"Sent {len(sent)} orders from {len(TABLES)} tables; all were acknowledged.\n")
    return sent


def read_back(address: str, topic: str, partitions: int) -> list[tuple[int, int, str, str]]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "restaurant",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    orders, ends = [], 0
    deadline = time.monotonic() + 20
    while ends < partitions and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            ends += message.error().code() == KafkaError._PARTITION_EOF
            continue
        orders.append((message.partition(), message.offset(), message.key().decode(), message.value().decode()))
    consumer.close()
    return sorted(orders)


def show(title: str, orders: list[tuple[int, int, str, str]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("partition", "offset", "table", "order"):
        table.add_column(column, justify="right" if column in ("partition", "offset") else "left")
    for partition, offset, key, value in orders:
        table.add_row(str(partition), str(offset), key, value)
    console.print(table)


def check(sent: list[tuple[str, str, str]], shown: dict[str, list[tuple[int, int, str, str]]], *topics: str) -> None:
    for topic in topics:
        for table in TABLES:
            ordered = [value for where, key, value in sent if (where, key) == (topic, table)]
            got = [value for _, _, key, value in shown[topic] if key == table]
            if ordered != got:
                raise SystemExit(f"{topic}: {table} ordered {ordered} and got {got}")


def wait(node: "subprocess.Popen[str]") -> None:
    try:
        node.wait()
    except KeyboardInterrupt:
        console.print("\nStopping.")


def stop(node: "subprocess.Popen[str]") -> None:
    if node.poll() is None:
        node.send_signal(signal.SIGTERM)
        node.wait(20)


if __name__ == "__main__":
    sys.exit(main())
