"""`python -m benchmarks.callgrind_produce`: the instructions of one-record Produce requests, counted by callgrind.

Instructions do not depend on what else the machine does, so that a difference of a few tenths of a percent can be seen.
A node runs under valgrind; a client outside of it sends requests on one PLAINTEXT connection, each after the answer to
the one before. Counted is the thread of the event loop; what it does in the same time without requests (timers) is
subtracted.

Nodes without and with metrics are compared; with `--before FOLDER` also one of another source tree: a worktree whose
kernels were built there by `python setup.py build_ext --inplace`.
"""

import argparse
import os
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from klamm.net.free_ports import free_ports
from klamm.protocol.codec import encode_into
from klamm.protocol.header import RequestHeader, encode_request_header
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.records.batch import build_batch

HERE = Path(__file__).resolve().parent.parent
READY_S = 300.0
VERSION = 9
METRICS_SHARE_MAX = 0.01
TOPIC = "callgrind"
WARM_UP = 300
_SUMMARY = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)
_CORRELATION_ID = struct.Struct(">i")


class CountFailed(Exception):
    """The node or valgrind did not do what was asked."""


@dataclass(frozen=True)
class Kind:
    """A node to be measured."""

    name: str
    source: Path
    metrics: bool = False


class CountedNode:
    """A node under callgrind, which counts only while it is told to."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        (self.port,) = free_ports("127.0.0.1", 1)
        main = "from klamm.cli.main import main; main()"
        command = [
            "valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes",
            f"--callgrind-out-file={folder / 'counts'}", f"--log-file={folder / 'valgrind.log'}",
            sys.executable, "-c", main, "up", "--data", str(folder / "data"), "--port", str(self.port),
            # Under valgrind a node is too slow for the usual times.
            "--override", "broker.session.timeout.ms=120000", "--override", "broker.heartbeat.interval.ms=30000",
        ]  # fmt: skip
        if (kind.source / "klamm" / "server" / "metrics").exists():
            command += ["--no-console", "--override", f"metrics.listeners={'127.0.0.1:0' if kind.metrics else ''}"]
        # The same order of sets in all processes, and compiled files are not written into another tree.
        environment = {
            **os.environ,
            "PYTHONPATH": str(kind.source),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._output = (folder / "stdout").open("w")
        self._process = subprocess.Popen(command, env=environment, stdout=self._output, stderr=subprocess.STDOUT)
        self._dumps = 0

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while "Klamm is ready" not in (output := (self.folder / "stdout").read_text()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise CountFailed(f"the node did not start:\n{output}{self._valgrind_log()}")
            time.sleep(0.2)

    def _valgrind_log(self) -> str:
        log = self.folder / "valgrind.log"
        return log.read_text() if log.exists() else ""

    def control(self, *words: str) -> None:
        """Tell callgrind to count, to begin anew or to write what it has counted."""
        done = subprocess.run(
            ["callgrind_control", *words, str(self._process.pid)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CountFailed(f"callgrind_control: {done.stdout}{done.stderr}")

    def read_count(self) -> int:
        """Return the instructions of the loop's thread since the last call, and begin anew."""
        self.control("-d")
        self._dumps += 1
        dump = self.folder / f"counts.{self._dumps}-01"
        deadline = time.monotonic() + 30
        while not (match := _SUMMARY.search(dump.read_text() if dump.exists() else "")):
            if time.monotonic() > deadline:
                raise CountFailed(f"no counts in {sorted(path.name for path in self.folder.iterdir())}")
            time.sleep(0.05)
        return int(match[1])

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()


def encode_request() -> bytearray:
    """Return a whole Produce frame with one record of 100 bytes."""
    records = bytes(build_batch([(1_700_000_000_000, None, b"x" * 100, ())]))
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=memoryview(records))])
    request = ProduceRequest(transactional_id=None, acks=1, timeout_ms=30_000, topic_data=[data])
    parts: list[bytes] = [encode_request_header(RequestHeader(0, VERSION, 0, "callgrind"))]
    encode_into(request, VERSION, parts)
    body = b"".join(parts)
    return bytearray(struct.pack(">i", len(body)) + body)


class Client:
    """One connection on which a request follows the answer to the one before."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frame = encode_request()
        self._sent = 0

    def produce(self, count: int) -> None:
        for _ in range(count):
            self._sent += 1
            # Behind the size, the API and its version.
            _CORRELATION_ID.pack_into(self._frame, 8, self._sent)
            self._sock.sendall(self._frame)
            answer = self._receive(_CORRELATION_ID.unpack(self._receive(4))[0])
            if _CORRELATION_ID.unpack_from(answer)[0] != self._sent:
                raise CountFailed("an answer to another request")

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._sock.recv(size - len(data))
            if not more:
                raise CountFailed("the node closed the connection")
            data += more
        return data

    def close(self) -> None:
        self._sock.close()


@contextmanager
def started(kind: Kind) -> Iterator[tuple[CountedNode, Client]]:
    with tempfile.TemporaryDirectory(prefix="callgrind-") as folder:
        node = CountedNode(kind, Path(folder))
        try:
            node.wait_ready()
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{node.port}", "socket.timeout.ms": 120_000})
            admin.create_topics([NewTopic(TOPIC, 1, 1)], request_timeout=120)[TOPIC].result(180)
            del admin
            client = Client(node.port)
            client.produce(WARM_UP)
            yield node, client
            client.close()
        finally:
            node.close()


def count_instructions(kind: Kind, requests: int, rounds: int) -> list[float]:
    """Return the instructions of a request, once for each round."""
    with started(kind) as (node, client):
        node.control("-i", "on")
        client.produce(WARM_UP)  # translates the code that is about to be counted
        node.read_count()
        counts = []
        for _ in range(rounds):
            began = time.monotonic()
            client.produce(requests)
            seconds = time.monotonic() - began
            loaded = node.read_count()
            time.sleep(seconds)
            idle = node.read_count()
            counts.append((loaded - idle) / requests)
        return counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.callgrind_produce", description=__doc__)
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="another source tree, to be compared with this")
    parser.add_argument("--requests", type=int, default=2000, help="requests of a round (2000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median counts (3)")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("needs valgrind: apt-get install valgrind", file=sys.stderr)
        return 2
    off = Kind("metrics off", HERE / "src")
    kinds = [off, Kind("metrics on", HERE / "src", metrics=True)]
    if options.before is not None:
        kinds.insert(0, Kind("before", options.before.resolve() / "src"))
    medians = {}
    for kind in kinds:
        counts = count_instructions(kind, options.requests, options.rounds)
        medians[kind.name] = statistics.median(counts)
        rounds = ", ".join(f"{count:,.0f}" for count in counts)
        print(f"{kind.name:12} {medians[kind.name]:10,.0f} instructions/request  ({rounds})", flush=True)
    share = medians["metrics on"] / medians["metrics off"] - 1
    print(f"metrics add {share:+.2%}")
    if "before" in medians:
        print(f"this tree without metrics beside the other one: {medians['metrics off'] / medians['before'] - 1:+.2%}")
    return int(share > METRICS_SHARE_MAX)


if __name__ == "__main__":
    sys.exit(main())
