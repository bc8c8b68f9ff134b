"""CPU of sending files over TLS: Klamm's channel beside a blocking `SSLSocket` that sends the same pieces.

    python -m benchmarks.tls_send [--gb N] [--rounds N]

The server is a process of its own and counts its own CPU time, from the first request to the end of the connection;
this process reads. Both servers use one certificate, one file in the page cache and replies of 1 MB, as Fetch has them.
Rounds alternate. Prints medians and their ratio, and ends with 1 if it is beyond the reach.
"""

import argparse
import asyncio
import os
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from klamm.cli.certs import issue, make_authority
from klamm.net import Channel, NetConfig, NetServer, TurnLoop
from klamm.net.tls_channel import TlsChannel
from klamm.net.tls_transport import PIECE_BYTES

REACH = 1.15
REPLY_BYTES = 1 << 20
FILE_BYTES = 256 << 20
REQUEST = struct.pack(">iq", 8, 0)
KINDS = ("channel", "socket")


class Region:
    """A reply: a part of the file."""

    length = REPLY_BYTES

    def __init__(self, fd: int, position: int) -> None:
        self._fd = fd
        self.position = position

    def fileno(self) -> int:
        return self._fd


class Replies:
    """Answers each frame with the next megabyte of the file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._sent = 0
        self._began = 0.0
        self.cpu_s = 0.0
        self.ended = asyncio.Event()

    def handle(self, channel: Channel, _view: memoryview, _start: int, _end: int) -> None:
        self._began = self._began or time.process_time()
        channel.reply(Region(self._fd, self._sent % FILE_BYTES))
        self._sent += REPLY_BYTES

    def on_closed(self, _channel: Channel) -> None:
        self.cpu_s = time.process_time() - self._began
        self.ended.set()


def accept_peer(_channel: TlsChannel) -> None:
    """Every reader is welcome."""


async def serve_channel(tls: ssl.SSLContext, fd: int) -> float:
    replies = Replies(fd)
    net = NetServer(asyncio.get_running_loop(), NetConfig())
    port = net.bind("TLS", "127.0.0.1", 0)[1]
    net.start(
        replies, {"TLS": None}, {"TLS": partial(TlsChannel, tls=tls, handshake_seconds=20, on_handshake=accept_peer)}
    )
    print(port, flush=True)
    await replies.ended.wait()
    net.stop()
    return replies.cpu_s


def serve_socket(tls: ssl.SSLContext, fd: int) -> float:
    piece = memoryview(bytearray(PIECE_BYTES))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        plain = listener.accept()[0]
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    began, sent = 0.0, 0
    with tls.wrap_socket(plain, server_side=True) as link:
        while link.recv(len(REQUEST)):
            began = began or time.process_time()
            for position in range(sent, sent + REPLY_BYTES, PIECE_BYTES):
                link.sendall(piece[: os.preadv(fd, [piece], position % FILE_BYTES)])
            sent += REPLY_BYTES
    return time.process_time() - began


def serve(kind: str, folder: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "certs" / "node.pem")
    fd = os.open(folder / "file", os.O_RDONLY)
    if kind == "socket":
        print(serve_socket(tls, fd))
        return
    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        print(runner.run(serve_channel(tls, fd)))


def measure(kind: str, folder: Path, replies: int) -> float:
    """Return the server's CPU seconds per GB."""
    command = [sys.executable, "-m", "benchmarks.tls_send", "--serve", kind, "--folder", str(folder)]
    tls = ssl.create_default_context(cafile=folder / "certs" / "ca.pem")
    space = bytearray(REPLY_BYTES)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
            tls.wrap_socket(plain, server_hostname="127.0.0.1") as link,
        ):
            for _ in range(replies):
                link.sendall(REQUEST)
                rest = REPLY_BYTES
                while rest:
                    count = link.recv_into(space, rest)
                    if not count:
                        raise ConnectionError(f"{kind}: the server ended the connection")
                    rest -= count
        return float(server.stdout.readline()) / (replies * REPLY_BYTES / 1e9)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.tls_send")
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.folder)
        return 0
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_authority(str(folder / "certs"))
        issue(str(folder / "certs"), "node", ("127.0.0.1",))
        with open(folder / "file", "wb") as file:
            file.writelines(os.urandom(REPLY_BYTES) for _ in range(FILE_BYTES // REPLY_BYTES))
        for number in range(options.rounds):
            # The order changes from round to round: neither is always the first after a pause.
            for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
                seconds[kind].append(measure(kind, folder, round(options.gb * 1e9 / REPLY_BYTES)))
    for kind, values in seconds.items():
        print(f"{kind}: {statistics.median(values):.3f} CPU s/GB ({', '.join(f'{value:.3f}' for value in values)})")
    ratio = statistics.median(seconds["channel"]) / statistics.median(seconds["socket"])
    print(f"channel : socket {ratio:.2f} (reach {REACH})")
    return 1 if ratio > REACH else 0


if __name__ == "__main__":
    sys.exit(main())
