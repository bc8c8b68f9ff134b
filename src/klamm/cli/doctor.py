"""`klamm doctor`: every step between this machine and a working cluster, tried one after the other, told in words."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from klamm.cli import exits
from klamm.cli.output import output_option, show
from klamm.cli.refusal import refuses
from klamm.cli.target import Target, cluster_options

if TYPE_CHECKING:
    from klamm.client.wire import Cluster

TOPIC = "klamm-doctor"
LOW_DISK = 0.05
CLOCK_MS = 5000
_NEEDED = (
    "Produce",
    "Fetch",
    "ListOffsets",
    "Metadata",
    "OffsetCommit",
    "FindCoordinator",
    "JoinGroup",
    "CreateTopics",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: `state` is ok, warning, wrong or left out."""

    check: str
    state: str
    found: str


class Doctor:
    """Keeps findings; a check that is wrong lets those that need it be left out."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.findings: list[Finding] = []
        self.cluster: Cluster | None = None

    def add(self, check: str, state: str, found: str) -> None:
        """Keep a finding."""
        self.findings.append(Finding(check, state, found))

    def run(self, *, round_trip: bool, confirm: str | None = None) -> None:
        """All checks, in the order a connection needs them."""
        from klamm.client.wire import Unreachable
        from klamm.model.errors import KlammError

        reached = [address for address in _addresses(self.target.bootstrap) if self._address(*address)]
        if not reached:
            self.add("cluster", "left out", "nobody could be asked anything")
            return
        try:
            bootstrap = ",".join(f"{host}:{port}" for host, port in reached)
            with dataclasses.replace(self.target, bootstrap=bootstrap).cluster() as cluster:
                self.cluster = cluster
                self._guarded("versions", self._versions)
                self._guarded("advertised addresses", self._advertised)
                self._guarded("partitions", self._partitions)
                self._guarded("disk", self._disk)
                if round_trip and self.target.protected and confirm != self.target.context:
                    name = self.target.context
                    self.add("round trip", "left out", f"{name} is protected: --confirm {name} lets it write there")
                elif round_trip:
                    self._guarded("round trip", self._round_trip)
        except (Unreachable, KlammError, OSError) as error:
            self.add("cluster", "wrong", f"the port is open, but what listens there does not answer as Kafka: {error}")

    def _guarded(self, check: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a doctor says what is wrong, whatever it is
            self.add(check, "wrong", str(error) or type(error).__name__)

    def _address(self, host: str, port: int) -> bool:
        try:
            began = time.perf_counter()
            found = sorted({str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
            took = (time.perf_counter() - began) * 1000
        except OSError as error:
            self.add("DNS", "wrong", f"{host} has no address: {error.strerror}; check the name, or /etc/hosts")
            return False
        state = "ok" if took < 1000 else "warning"
        self.add("DNS", state, f"{host} is {', '.join(found)} ({took:.0f} ms)")
        return self._tcp("TCP", host, port)

    def _tcp(self, check: str, host: str, port: int) -> bool:
        try:
            began = time.perf_counter()
            with socket.create_connection((host, port), timeout=min(self.target.timeout_s, 5.0)):
                took = (time.perf_counter() - began) * 1000
        except TimeoutError:
            self.add(check, "wrong", f"{host}:{port} does not answer: a firewall, or the wrong address")
            return False
        except OSError as error:
            self.add(check, "wrong", f"{host}:{port} refuses ({error.strerror}): is a node running there? `klamm up`")
            return False
        self.add(check, "ok", f"{host}:{port} takes connections ({took:.1f} ms)")
        return True

    def _versions(self) -> None:
        from klamm.protocol.apis import BY_NAME
        from klamm.protocol.messages.api_versions import ApiVersionsRequest

        assert self.cluster is not None
        answer = self.cluster.ask(ApiVersionsRequest(client_software_name="klamm", client_software_version="1"))
        served = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        missing = []
        for name in _NEEDED:
            api = BY_NAME[name]
            low, high = served.get(api.key, (0, -1))
            if min(high, api.versions[1]) < max(low, api.versions[0]):
                missing.append(name)
        if missing:
            self.add("versions", "wrong", f"the broker and this client share no version of {', '.join(missing)}")
        else:
            level = next((f.max_version_level for f in answer.finalized_features if f.name == "metadata.version"), None)
            told = "" if level is None else f", metadata.version {level}"
            self.add("versions", "ok", f"{len(served)} APIs{told}")

    def _advertised(self) -> None:
        """What clients are told is where they go next: every address must be reachable from here."""
        from klamm.cli.asking.cluster import overview

        assert self.cluster is not None
        about = overview(self.cluster)
        asked = {f"{host}:{port}" for host, port in _addresses(self.target.bootstrap)}
        for broker in about.brokers:
            if broker.fenced:
                self.add("advertised addresses", "warning", f"broker {broker.id} is fenced: it is down, or starting")
                continue
            address = f"{broker.host}:{broker.port}"
            before = len(self.findings)
            if not self._tcp("advertised addresses", broker.host, broker.port):
                del self.findings[before:]
                self.add(
                    "advertised addresses",
                    "wrong",
                    f"broker {broker.id} tells clients to come to {address}, which cannot be reached from here;"
                    " set its advertised.listeners to an address that can",
                )
            elif address not in asked and broker.host in ("localhost", "127.0.0.1") and not _local(asked):
                self.add(
                    "advertised addresses",
                    "wrong",
                    f"broker {broker.id} tells clients to come to {address}: that is their own machine",
                )

    def _partitions(self) -> None:
        from klamm.cli.asking.topics import list_topics
        from klamm.cli.units import counted

        assert self.cluster is not None
        topics = list_topics(self.cluster)
        parts = [(topic.name, p) for topic in topics for p in topic.partitions]
        leaderless = [f"{name}-{p.index}" for name, p in parts if p.leader < 0]
        behind = [f"{name}-{p.index}" for name, p in parts if p.leader >= 0 and len(p.isr) < len(p.replicas)]
        if leaderless:
            self.add("partitions", "wrong", f"{len(leaderless)} without a leader, such as {leaderless[0]}")
        if behind:
            self.add("partitions", "warning", f"{len(behind)} under-replicated, such as {behind[0]}")
        if not leaderless and not behind:
            self.add(
                "partitions", "ok", f"{len(parts)} in {counted(len(topics), 'topic')}, all with leader and replicas"
            )

    def _disk(self) -> None:
        from klamm.cli.asking.cluster import log_dirs
        from klamm.cli.units import format_size

        assert self.cluster is not None
        for folder in log_dirs(self.cluster):
            where = f"broker {folder.broker}, {folder.path}"
            if folder.error:
                self.add("disk", "wrong", f"{where}: {folder.error.name}; the folder is out of use")
            elif folder.total_bytes < 0:
                self.add("disk", "left out", f"{where}: the broker does not tell how full it is")
            else:
                low = folder.usable_bytes < folder.total_bytes * LOW_DISK
                free = f"{format_size(folder.usable_bytes)} of {format_size(folder.total_bytes)} free"
                self.add("disk", "warning" if low else "ok", f"{where}: {free}")

    def _round_trip(self) -> None:
        """One record there and back; its timestamp by the broker's clock tells how far the clocks are apart."""
        from klamm.cli.asking.reading import Reader, Span
        from klamm.cli.asking.topics import create_topic, delete_topics
        from klamm.client import Producer

        assert self.cluster is not None
        name = f"{TOPIC}-{time.time_ns()}"
        create_topic(self.cluster, name, partitions=1, configs={"message.timestamp.type": "LogAppendTime"})
        try:
            before = time.time() * 1000
            settings = self.target.client("producer", client_id="klamm-doctor", request_timeout_ms="10000")
            with Producer(settings) as producer:
                began = time.perf_counter()
                offset = producer.send(name, b"round trip", partition=0).result().offset
                wrote = (time.perf_counter() - began) * 1000
            after = time.time() * 1000
            began = time.perf_counter()
            records = list(Reader(self.cluster, {(name, 0): Span(offset, offset + 1)}).read())
            read = (time.perf_counter() - began) * 1000
            if [record.value for record in records] != [b"round trip"]:
                self.add("round trip", "wrong", "the record that was written did not come back")
                return
            self.add("round trip", "ok", f"written and acknowledged in {wrote:.1f} ms, read back in {read:.1f} ms")
            self._clock(records[0].timestamp, before, after)
        finally:
            delete_topics(self.cluster, [name])

    def _clock(self, stamped_ms: int, before_ms: float, after_ms: float) -> None:
        apart = max(before_ms - stamped_ms, stamped_ms - after_ms, 0)
        if apart > CLOCK_MS:
            self.add(
                "clock", "warning", f"the broker's clock is {apart / 1000:.0f} s away from this machine's; use NTP"
            )
        else:
            self.add("clock", "ok", f"the broker's clock agrees with this machine's (within {max(apart, 1):.0f} ms)")


def _addresses(bootstrap: str) -> list[tuple[str, int]]:
    found = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():
            raise click.UsageError(f"{address.strip()!r} is no address; write HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    return found


def _local(addresses: set[str]) -> bool:
    return any(address.startswith(("localhost:", "127.", "[::1]", "::1")) for address in addresses)


@click.command()
@click.option("--no-round-trip", is_flag=True, help="Write nothing; the clock is then not compared either.")
@click.option("--confirm", metavar="NAME", help="Let the round trip write to the protected context of that name.")
@cluster_options
@output_option
@refuses
def doctor(*, no_round_trip: bool, confirm: str | None, target: Target, output: str) -> None:
    """Check DNS, TCP, advertised addresses, versions, disks, clock and one round trip.

    Ends with exit code 1 when something is wrong. The round trip makes a topic of its own and deletes it again.
    """
    examined = Doctor(target)
    examined.run(round_trip=not no_round_trip, confirm=confirm)
    rows: list[dict[str, Any]] = [
        {"check": each.check, "state": each.state, "found": each.found} for each in examined.findings
    ]
    show(rows, output)
    wrong = [each for each in examined.findings if each.state == "wrong"]
    if wrong:
        unreachable = all(each.check in ("DNS", "TCP") for each in wrong)
        raise SystemExit(exits.NO_ANSWER if unreachable else exits.REFUSED)
