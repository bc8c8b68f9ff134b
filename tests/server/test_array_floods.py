"""Valid requests full of the smallest elements: refused before they are decoded, and other connections do not wait.

Older tests of hostile bytes sent counts that the bytes did not back; here every element is really there.
"""

import os
import struct
import threading
import time
from pathlib import Path

import pytest

from harness import KlammProcess, Wire
from harness.floods import _element, floods
from klamm.protocol import encode, encode_request_header
from klamm.protocol.apis import BY_NAME
from klamm.protocol.budget import elements_max
from klamm.protocol.header import RequestHeader
from klamm.protocol.schema import declaration

FLOOD_BYTES = 2_000_000
CPU_MS_MAX = 400
"""Processor time, since a wait depends on what else the machine does: what a probe waits for is part of this."""
MEMORY_RATIO_MAX = 10
TAKEN_BYTES_MAX = 60 << 20
"""A request of the most elements that are taken, its handling and its answer."""


class Watch:
    """Processor time and memory of a process."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def cpu_ms(self) -> float:
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")

    def reset_peak(self) -> None:
        (self._folder / "clear_refs").write_text("5")

    def memory(self, key: str) -> int:
        [line] = [line for line in (self._folder / "status").read_text().splitlines() if line.startswith(key)]
        return int(line.split()[1]) * 1024


class Probe:
    """Asks the node something small again and again; remembers the longest wait."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.longest_ms = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with Wire(self._port, timeout=60) as wire:
            while not self._stop.is_set():
                begun = time.monotonic()
                wire.call("api_versions", 0)
                self.longest_ms = max(self.longest_ms, (time.monotonic() - begun) * 1000)
                time.sleep(0.002)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    with KlammProcess(tmp_path_factory.mktemp("floods")) as klamm:
        yield klamm
        klamm.stop()


def throw(port, frame):
    """Send it; the answer, or None when the connection is closed."""
    with Wire(port, timeout=60) as wire:
        try:
            wire.send_frame(frame)
            return wire.receive_frame()
        except ConnectionError:
            return None


def test_floods_are_what_the_codec_encodes():
    for flood in floods():
        assert flood.request(1_000) == flood.request(1_000, lambda kind: _element(kind)), flood.name  # noqa: PLW0108


@pytest.mark.timeout(600)
def test_a_flood_is_refused_before_it_costs_anything(own):
    watch = Watch(own.pid)
    for flood in floods():
        throw(own.port, flood.request(1))  # whatever is compiled and cached on first use
    for flood in floods():
        name, api, version = flood.name, flood.api, flood.version
        frame = max(flood.request_of_size(FLOOD_BYTES), flood.request(elements_max(api.key) + 1), key=len)
        watch.reset_peak()
        before, cpu = watch.memory("VmRSS"), watch.cpu_ms()
        answer = throw(own.port, frame)
        used = watch.cpu_ms() - cpu
        grown = watch.memory("VmHWM") - before
        print(f"{name}: {len(frame)} bytes, {used:.0f} ms, {grown / len(frame):.1f} times the frame")
        assert used <= CPU_MS_MAX, name
        assert grown <= MEMORY_RATIO_MAX * len(frame), name
        if answer is not None and declaration(api.response).fields[0].name == "error_code":
            flexible = api.flexible_since is not None and version >= api.flexible_since
            assert struct.unpack_from(">h", answer, 4 + flexible) == (42,), name
    assert "request failed" not in own.log()


def test_a_flood_of_tagged_fields_is_refused(own):
    watch = Watch(own.pid)
    tags = b"\xff\xff\x3f" + b"\x64\x00" * 1_048_575  # tag 100, empty
    header = encode_request_header(RequestHeader(18, 3, 1, "flood"))
    body = encode(BY_NAME["ApiVersions"].request(), 3)
    before = watch.cpu_ms()
    for frame in (header + body[:-1] + tags, header[:-1] + tags + body):
        answer = throw(own.port, frame)
        assert answer is None or struct.unpack_from(">h", answer, 4) == (42,)
    assert watch.cpu_ms() - before <= CPU_MS_MAX


def test_requests_behind_a_large_one_wait_for_it(own):
    """A request that is decoded in slices is handled before those sent after it on its connection."""
    names = [f"large-{number:05d}" for number in range(9_000)]
    with Wire(own.port) as wire:
        large = wire.send(
            "metadata", 12, topics=[{"name": name * 3} for name in names], allow_auto_topic_creation=False
        )
        small = [wire.send("api_versions", 0) for _ in range(5)]
        assert len(wire.receive("metadata", 12, large).topics) == 9_000
        for number in small:
            assert wire.receive("api_versions", 0, number).error_code == 0


@pytest.mark.timeout(900)
def test_the_largest_requests_that_are_taken_delay_no_other_connection(own):
    watch = Watch(own.pid)
    with Probe(own.port) as probe:
        for flood in floods():
            name, frame = flood.name, flood.request(elements_max(flood.api.key) - 1)
            watch.reset_peak()
            before, cpu = watch.memory("VmRSS"), watch.cpu_ms()
            probe.longest_ms = 0.0
            throw(own.port, frame)
            used = watch.cpu_ms() - cpu
            grown = watch.memory("VmHWM") - before
            print(f"{name}: {len(frame)} bytes, {used:.0f} ms, {grown >> 20} MB, wait {probe.longest_ms:.0f} ms")
            assert used <= 2 * CPU_MS_MAX, name
            assert grown <= TAKEN_BYTES_MAX, name
    assert "request failed" not in own.log()
