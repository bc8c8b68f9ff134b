"""Requests to an HTTP service as fast as it answers, and the service itself: Klamm's, or another one by its command."""

import asyncio
import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

START_LIMIT_S = 300.0
STOP_LIMIT_S = 30.0
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")


def request_bytes(url: str, method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> bytes:
    """Return a request as it is sent."""
    parts = urlsplit(url)
    head = f"{method} {path} HTTP/1.1\r\nHost: {parts.hostname}:{parts.port}\r\nAccept: */*\r\n"
    if body:
        head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class HttpLoad:
    """Requests to one service; every connection sends its next request when the last one is answered."""

    def __init__(self, url: str, requests: Iterator[bytes], *, status: int = 200, expected: bytes = b"") -> None:
        """An answer has to have this status, and these bytes in its body, spaces aside."""
        self.host, self.port = urlsplit(url).hostname, urlsplit(url).port
        self.requests = requests
        self.status, self.expected = str(status).encode(), expected
        self.latencies: list[float] = []

    async def run(self, seconds: float, connections: int) -> None:
        """Send requests for some seconds; RuntimeError for an answer that is not the expected one."""
        end = time.perf_counter() + seconds
        await asyncio.gather(*(self._send(end) for _ in range(connections)))

    async def _send(self, end: float) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            while (began := time.perf_counter()) < end:
                writer.write(next(self.requests))
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                if length is None:
                    raise RuntimeError(f"an answer without a length: {head!r}")
                body = await reader.readexactly(int(length[1]))
                self.latencies.append(time.perf_counter() - began)
                status = _STATUS.match(head)
                if status is None or status[1] != self.status or self.expected not in body.replace(b" ", b""):
                    raise RuntimeError(f"not the expected answer: {head!r} {body[:200]!r}")
        finally:
            writer.close()


def measure_load(load: HttpLoad, pid: int | None, seconds: float, connections: int) -> dict[str, float]:
    """Run a load after a short one to warm up; rates, times, and the cost in the service."""
    asyncio.run(load.run(min(seconds, 2.0), connections))
    load.latencies.clear()
    busy_s, began = cpu_s(pid), time.perf_counter()
    asyncio.run(load.run(seconds, connections))
    elapsed = time.perf_counter() - began
    latencies = sorted(load.latencies)
    return {
        "requests_per_s": len(latencies) / elapsed,
        "cpu_ms_per_request": (cpu_s(pid) - busy_s) * 1000 / len(latencies),
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000,
        "rss_mb": rss_mb(pid),
    }


def cpu_s(pid: int | None) -> float:
    """Return the processor time of a service, which the load of the machine hardly changes; 0 without a pid."""
    return sum(times.user + times.system for process in _family(pid) for times in (process.cpu_times(),))


def rss_mb(pid: int | None) -> float:
    """Return the resident memory of a service; 0 without a pid."""
    return sum(process.memory_info().rss for process in _family(pid)) / (1 << 20)


def _family(pid: int | None) -> Iterable[psutil.Process]:
    """A service may be a process below the one that was started: a shell, a launcher."""
    if not pid:
        return ()
    process = psutil.Process(pid)
    return (process, *process.children(recursive=True))


@dataclass
class RunningService:
    """A service and its process; one that was running before may have no pid, and is not ended."""

    url: str
    pid: int | None
    process: subprocess.Popen[bytes] | None = None
    start_s: float = 0.0
    """From its start to the first answer."""

    def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def klamm_command(service: str) -> str:
    """Return the command of a service of Klamm, with the fields that `start_service` fills."""
    own = "--topic {topic} --group {group}" if service == "registry" else ""
    return f"{shlex.quote(sys.executable)} -m klamm {service} -b {{bootstrap}} --port {{port}} {own}"


def start_service(command: str, path: str, **fields: str) -> RunningService:
    """Start a command and wait until `path` is answered with 200.

    {port} in a word of the command is a free port, and other names in braces are `fields`.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = [word.format(port=port, **fields) for word in shlex.split(command)]
    # The child has a descriptor of its own: the file lives as long as it.
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=log, env=os.environ | {"KLAMM_CONTEXTS": os.devnull}
        )
        service = RunningService(f"http://127.0.0.1:{port}", process.pid, process)
        try:
            while not _is_answered(service.url + path):
                if process.poll() is not None or time.perf_counter() > began + START_LIMIT_S:
                    log.seek(0)
                    text = log.read()[-2000:].decode(errors="replace")
                    raise RuntimeError(f"{words[0]} does not answer {path}, exit code {process.returncode}: {text}")
                time.sleep(0.01)
        except BaseException:
            service.close()
            raise
    service.start_s = time.perf_counter() - began
    return service


def _is_answered(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as response:
        return response.status == 200
    return False
