"""`klamm doctor`: checks every step between this machine and a working cluster, in the order a client needs them."""

from __future__ import annotations

import dataclasses
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from klamm.cli import exit_codes
from klamm.cli.command_errors import refuses
from klamm.cli.foreign_protocols import not_kafka
from klamm.cli.output import csv_lines, output_option, printable, render, show
from klamm.cli.target import Target, cluster_options, parse_addresses

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

TOPIC = "klamm-doctor"
LOW_DISK = 0.05
"""The share of free space below which a disk is reported."""
CLOCK_MS = 5000
"""Clock skew that is reported; NTP keeps clocks within milliseconds."""
OLD_S = 3600
"""A doctor takes seconds: a topic of one that is an hour old was left behind."""
_OWN = re.compile(rf"{TOPIC}-(\d{{19}})")
_WIDTHS = {"CHECK": 22, "STATE": 10, "FOUND": 0}
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
    """Runs the checks and reports each finding at once; checks that depend on a failed one are left out."""

    def __init__(self, target: Target, report: Callable[[Finding], None]) -> None:
        self.target = target
        self.findings: list[Finding] = []
        self.cluster: BlockingCluster | None = None
        self._report = report

    def add(self, check: str, state: str, result: str) -> None:
        """Keep a finding, and report it."""
        self.findings.append(Finding(check, state, result))
        self._report(self.findings[-1])

    def is_wrong(self, check: str) -> bool:
        """Whether that check found something wrong."""
        return any(finding.check == check and finding.state == "wrong" for finding in self.findings)

    def run(self, *, round_trip: bool, confirm: str | None = None) -> None:
        """All checks, in the order a connection needs them."""
        from klamm.client.blocking_cluster import ClusterUnreachable
        from klamm.model.errors import KlammError, ProtocolError

        reached = [address for address in parse_addresses(self.target.bootstrap) if self._address(*address)]
        if not reached:
            self.add("cluster", "left out", "no broker could be reached")
            return
        try:
            # Only addresses that answered: a dead one among them is a finding already, and would cost its timeout
            # again.
            bootstrap = ",".join(f"{host}:{port}" for host, port in reached)
            with dataclasses.replace(self.target, bootstrap=bootstrap).cluster() as cluster:
                self.cluster = cluster
                self._versions()
                self._run_check("advertised addresses", self._check_advertised)
                self._run_check("partitions", self._partitions)
                if self.is_wrong("advertised addresses"):
                    self.add("disk", "left out", "requests go to the advertised addresses, and one is wrong")
                else:
                    self._run_check("disk", self._disk)
                if round_trip:
                    self._write(confirm)
        except (ClusterUnreachable, KlammError, OSError, ProtocolError) as error:
            detail = not_kafka(str(error))
            complaint = f"the port is open, but what listens there does not answer as Kafka: {error}"
            self.add("cluster", "wrong", detail or complaint)

    def _write(self, confirm: str | None) -> None:
        """The round trip, unless the context is protected or the addresses are wrong."""
        target = self.target.resolve_protection()
        if target.protected and confirm != target.context:
            name = target.context
            self.add("round trip", "left out", f"{name} is protected: --confirm {name} lets it write there")
        elif self.is_wrong("advertised addresses"):
            self.add("round trip", "left out", "clients connect to the advertised addresses, and one is wrong")
        else:
            self._run_check("old topics", self._sweep)
            self._run_check("round trip", self._round_trip)

    def _run_check(self, check: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - any failure is a finding
            self.add(check, "wrong", str(error) or type(error).__name__)

    def _address(self, host: str, port: int) -> bool:
        try:
            began = time.perf_counter()
            addresses = self._look_up(host, port)
            took = (time.perf_counter() - began) * 1000
        except TimeoutError:
            self.add("DNS", "wrong", f"{host} could not be resolved in time; check the name, or the name server")
            return False
        except OSError as error:
            self.add("DNS", "wrong", f"{host} has no address: {error.strerror}; check the name, or /etc/hosts")
            return False
        # A resolver that falls back to a second server takes seconds, and every new connection pays for it.
        state = "ok" if took < 1000 else "warning"
        self.add("DNS", state, f"{host} is {', '.join(addresses)} ({took:.0f} ms)")
        reached, detail = self._tcp(host, port)
        self.add("TCP", "ok" if reached else "wrong", detail)
        return reached

    def _look_up(self, host: str, port: int) -> list[str]:
        """The addresses of a name; in a thread, since the resolver's own timeout cannot be set."""
        addresses: list[str] = []
        failed: list[OSError] = []

        def resolve() -> None:
            try:
                infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses.extend(sorted({str(info[4][0]) for info in infos}))
            except OSError as error:
                failed.append(error)

        resolver = threading.Thread(target=resolve, name="dns", daemon=True)
        resolver.start()
        resolver.join(self.target.timeout_s)
        if failed:
            raise failed[0]
        if not addresses:
            raise TimeoutError
        return addresses

    def _tcp(self, host: str, port: int) -> tuple[bool, str]:
        """Whether a port accepts connections, and the sentence for the finding."""
        try:
            began = time.perf_counter()
            # create_connection resolves too, and its timeout does not cover the resolver.
            self._look_up(host, port)
            with socket.create_connection((host, port), timeout=min(self.target.timeout_s, 5.0)):
                took = (time.perf_counter() - began) * 1000
        except TimeoutError:
            return False, f"{host}:{port} does not answer: a firewall, or the wrong address"
        except socket.gaierror as error:
            return False, f"{host} has no address: {error.strerror}"
        except OSError as error:
            return False, f"{host}:{port} refuses ({error.strerror}): is a node running there? `klamm up`"
        return True, f"{host}:{port} accepts connections ({took:.1f} ms)"

    def _versions(self) -> None:
        from klamm.cli.queries.cluster import describe_api_versions
        from klamm.cli.queries.features import METADATA, describe_features
        from klamm.protocol.apis import BY_NAME

        assert self.cluster is not None
        served = describe_api_versions(self.cluster)
        missing = []
        for name in _NEEDED:
            api = BY_NAME[name]
            # An API that is not served has an empty range.
            low, high = served.get(api.key, (0, -1))
            if min(high, api.versions[1]) < max(low, api.versions[0]):
                missing.append(name)
        if missing:
            self.add("versions", "wrong", f"the broker and this client share no version of {', '.join(missing)}")
        else:
            features, _ = describe_features(self.cluster)
            levels = [f", {METADATA} {feature.level}" for feature in features if feature.name == METADATA]
            self.add("versions", "ok", f"{len(served)} APIs{''.join(levels)}")

    def _check_advertised(self) -> None:
        """Clients connect to the advertised addresses next: every one must be reachable from here."""
        from klamm.cli.queries.cluster import describe_cluster

        assert self.cluster is not None
        about = describe_cluster(self.cluster)
        given = {f"{host}:{port}" for host, port in parse_addresses(self.target.bootstrap)}
        for broker in about.brokers:
            # A fenced broker is not advertised to clients, so an unreachable address is no error yet.
            if broker.fenced:
                self.add("advertised addresses", "warning", f"broker {broker.id} is fenced: it is down, or starting")
                continue
            address = f"{broker.host}:{broker.port}"
            reached, detail = self._tcp(broker.host, broker.port)
            if not reached:
                self.add(
                    "advertised addresses",
                    "wrong",
                    f"broker {broker.id} advertises {address}, which cannot be reached from here"
                    f" ({detail});"
                    " set its advertised.listeners to an address that can",
                )
            # The usual mistake of a broker in a container: it advertises localhost, which works only on its own
            # machine.
            elif address not in given and broker.host in ("localhost", "127.0.0.1") and not _local(given):
                self.add(
                    "advertised addresses",
                    "wrong",
                    f"broker {broker.id} advertises {address}: for a client that is its own machine",
                )
            else:
                self.add("advertised addresses", "ok", detail)

    def _partitions(self) -> None:
        from klamm.cli.queries.topics import list_topics
        from klamm.model.units import pluralize

        assert self.cluster is not None
        topics = list_topics(self.cluster)
        parts = [(topic.name, p) for topic in topics for p in topic.partitions]
        leaderless = [f"{name}-{p.partition}" for name, p in parts if p.leader < 0]
        behind = [f"{name}-{p.partition}" for name, p in parts if p.leader >= 0 and len(p.isr) < len(p.replicas)]
        if leaderless:
            self.add("partitions", "wrong", f"{len(leaderless)} without a leader, such as {leaderless[0]}")
        if behind:
            self.add("partitions", "warning", f"{len(behind)} under-replicated, such as {behind[0]}")
        if not leaderless and not behind:
            self.add(
                "partitions", "ok", f"{len(parts)} in {pluralize(len(topics), 'topic')}, all with leader and replicas"
            )

    def _disk(self) -> None:
        from klamm.cli.queries.cluster import describe_log_dirs
        from klamm.model.errors import ErrorCode
        from klamm.model.units import format_size

        assert self.cluster is not None
        for broker_id, folder in describe_log_dirs(self.cluster):
            where = f"broker {broker_id}, {folder.path}"
            if folder.error_code:
                self.add("disk", "wrong", f"{where}: {ErrorCode(folder.error_code).name}; the folder is out of use")
            # Brokers before KIP-827 do not report disk sizes.
            elif folder.total_bytes < 0:
                self.add("disk", "left out", f"{where}: the broker does not report how full it is")
            else:
                low = folder.usable_bytes < folder.total_bytes * LOW_DISK
                free = f"{format_size(folder.usable_bytes)} of {format_size(folder.total_bytes)} free"
                self.add("disk", "warning" if low else "ok", f"{where}: {free}")

    def _sweep(self) -> None:
        """Delete topics of a doctor that was killed: those too old for one that still runs."""
        from klamm.cli.queries.topics import delete_topics, list_topics
        from klamm.model.units import pluralize

        assert self.cluster is not None
        before_ns = time.time_ns() - OLD_S * 1_000_000_000
        old = [
            topic.name
            for topic in list_topics(self.cluster)
            if (match := _OWN.fullmatch(topic.name)) and int(match[1]) < before_ns
        ]
        if old:
            delete_topics(self.cluster, old)
            self.add("old topics", "ok", f"deleted {pluralize(len(old), 'topic')} of earlier runs, such as {old[0]}")

    def _round_trip(self) -> None:
        """Write and read one record; its timestamp by the broker's clock shows how far the clocks are apart."""
        from klamm.cli.outage import Outage
        from klamm.cli.partition_reader import PartitionReader, Span
        from klamm.cli.queries.topics import create_topic, delete_topics
        from klamm.client import Producer

        assert self.cluster is not None
        name = f"{TOPIC}-{time.time_ns()}"
        try:
            # LogAppendTime: the timestamp is the clock of the broker, not of this machine.
            create_topic(self.cluster, name, partitions=1, configs={"message.timestamp.type": "LogAppendTime"})
            before = time.time() * 1000
            settings = dataclasses.replace(self.target, bounds_waits=True).client("producer", client_id="klamm-doctor")
            with Producer({"bootstrap.timeout.ms": 0, **settings}) as producer:
                began = time.perf_counter()
                offset = producer.send(name, b"round trip", partition=0).result().offset
                wrote = (time.perf_counter() - began) * 1000
            after = time.time() * 1000
            began = time.perf_counter()
            span = {(name, 0): Span(offset, offset + 1)}
            records = list(PartitionReader(self.cluster, span, outage=Outage(self.target.timeout_s)).read())
            read = (time.perf_counter() - began) * 1000
            if [record.value for record in records] != [b"round trip"]:
                self.add("round trip", "wrong", "the record that was written did not come back")
                return
            self.add("round trip", "ok", f"written and acknowledged in {wrote:.1f} ms, read back in {read:.1f} ms")
            self._clock(records[0].timestamp, before, after)
        finally:
            # Interrupted, the connection may have a response outstanding; a new connection has none.
            with self.target.cluster() as cluster:
                delete_topics(cluster, [name])

    def _clock(self, stamped_ms: int, before_ms: float, after_ms: float) -> None:
        # The broker stamped the record between these two moments; only what lies outside of them is skew.
        apart = max(before_ms - stamped_ms, stamped_ms - after_ms, 0)
        if apart > CLOCK_MS:
            self.add(
                "clock", "warning", f"the broker's clock is {apart / 1000:.0f} s away from this machine's; use NTP"
            )
        else:
            self.add("clock", "ok", f"the broker's clock agrees with this machine's (within {max(apart, 1):.0f} ms)")


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
    printer = _Printer(output)
    examined = Doctor(target, printer.add)
    try:
        examined.run(round_trip=not no_round_trip, confirm=confirm)
    finally:
        printer.end()
    wrong = [finding for finding in examined.findings if finding.state == "wrong"]
    if wrong:
        # Nothing answered at all: the exit code of every other command for that.
        unreachable = all(finding.check in ("DNS", "TCP") for finding in wrong)
        raise SystemExit(exit_codes.NO_ANSWER if unreachable else exit_codes.REFUSED)


class _Printer:
    """Prints each finding as soon as it is made; JSON is one list, at the end."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._rows: list[dict[str, Any]] = []

    def add(self, finding: Finding) -> None:
        """Print one."""
        row = {"check": finding.check, "state": finding.state, "found": finding.found}
        is_first = not self._rows
        self._rows.append(row)
        if self._output == "table":
            lines = ["".join(head.ljust(width) for head, width in _WIDTHS.items()).rstrip()] if is_first else []
            lines.append("".join(printable(row[head.lower()]).ljust(width) for head, width in _WIDTHS.items()).rstrip())
        elif self._output == "csv":
            lines = csv_lines([row])[0 if is_first else 1 :]
        elif self._output == "json":
            return
        else:
            lines = list(render([row], self._output))
        click.echo("\n".join(lines))

    def end(self) -> None:
        """Print what was kept back."""
        if self._output == "json":
            show(self._rows, "json")
