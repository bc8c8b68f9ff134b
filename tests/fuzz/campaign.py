"""A row of hostile requests against a running node, and what is watched meanwhile.

After every connection a probe on another one must be answered, and on a share of the connections every request itself;
every so often a record is written and read back, and memory, descriptors and the log are looked at. All follows from
the seed; a violation says which frames came last, and keeps them in the corpus, which every later run begins with.
"""

import contextlib
import random
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fuzz.batches import harm_batch, make_batch
from fuzz.requests import (
    APIS_OF,
    changed,
    ends_the_node,
    enveloped,
    has_no_answer,
    made_up,
    may_wait,
    produce_frame,
    random_frame,
    samples,
)
from fuzz.target import join_parts, keep_input, kept_inputs, split_parts
from harness import KlammProcess, Wire, batch, rows
from harness.wire import request_bytes
from klamm.net.free_ports import free_ports

PROBE_S = 30.0
"""A probe that waits longer is a violation; generous, since the machine may do other things."""
ANSWERED_SHARE = 0.3
"""Of the connections: those on which every request must be answered in its turn, or the connection be closed."""
SENTINEL_ID = 0x53454E54
SENTINEL = request_bytes("api_versions", 0, SENTINEL_ID, "sentinel")
LOOK_EVERY = 200
MEMORY_BYTES_MAX = 400 << 20
"""How far memory may rise at any time above what the node had after every request was sent once."""
DESCRIPTORS_MAX = 3_000
"""How many more descriptors may be open; requests that create topics succeed now and then."""
SOCKETS_MAX = 20
"""How many more of them may be sockets: every hostile connection has ended when the next one begins."""
LOG_COMPLAINTS = ("request failed", "Traceback", "could not be handled")
KEPT_FRAMES = 12


class Violation(AssertionError):
    """The node did something no request may make it do."""


class Usage(NamedTuple):
    """What the node takes of the machine."""

    memory_peak: int
    descriptors: int
    sockets: int


@dataclass(slots=True)
class Outcome:
    """What a campaign came to."""

    seed: int
    connections: int = 0
    frames: int = 0
    answers: int = 0
    checked: int = 0
    """Frames whose answers were waited for."""
    slowest_probe_ms: float = 0.0
    memory_grown: int = 0
    descriptors_grown: int = 0
    sockets_grown: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.frames} frames on {self.connections} connections, {self.answers} answers, "
            f"{self.checked} of them in their turn; "
            f"slowest probe {self.slowest_probe_ms:.0f} ms, memory +{self.memory_grown >> 20} MB, "
            f"descriptors +{self.descriptors_grown} (sockets +{self.sockets_grown}); "
            + ", ".join(f"{kind} {count}" for kind, count in sorted(self.by_kind.items()))
        )


class NodeWithController(KlammProcess):
    """A node whose controller listener has a known port."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.controller_port = free_ports("127.0.0.1", 2)
        self.overrides = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
        }


class Campaign:
    """One node that gets fuzzed requests on its broker listener; `run` ends after the given time."""

    kind = "broker"
    """The kind of the listener."""

    def __init__(self, node: KlammProcess, seed: int) -> None:
        self._node = node
        self._apis = APIS_OF[self.kind]
        self._source = random.Random(seed)
        self._recent: deque[tuple[str, bytes]] = deque(maxlen=KEPT_FRAMES)
        self.outcome = Outcome(seed)

    @property
    def port(self) -> int:
        """The listener that is fuzzed."""
        return self._node.port

    @property
    def corpus(self) -> str:
        """Where the frames that broke something are kept."""
        return f"{self.kind} frames"

    def run(self, seconds: float) -> Outcome:
        """Throw requests for so long; Violation as soon as something is wrong."""
        with self._open_probe() as probe:
            topic = probe.create_topic()
            self._prepare(probe, topic)
            plausible = list(samples(topic, probe.topic_id(topic), self.kind))
            with Wire(self.port, timeout=PROBE_S) as wire:
                for _, frame in plausible:
                    wire.send_frame(frame)
                    wire.receive_frame()  # as it stands, each of them is answered
            before = self._usage()
            for data in kept_inputs(self.corpus):
                self._throw("kept", split_parts(data))
                self._probe(probe)
            self._check_node(probe, topic, before)
            # After the first requests, which compile codecs: on a busy machine they alone could take all the time.
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                for kind, volley in self._volley(plausible, topic):
                    frames = [frame for frame in volley if not ends_the_node(frame)]
                    self._throw(kind, frames)
                    self._probe(probe)
                    if self.outcome.connections % LOOK_EVERY == 0:
                        self._check_node(probe, topic, before)
                    if time.monotonic() >= deadline:
                        break
            self._check_node(probe, topic, before)
        return self.outcome

    def _open_probe(self) -> Wire:
        """A connection that may do everything."""
        return Wire(self._node.port, timeout=PROBE_S)

    def _prepare(self, probe: Wire, topic: str) -> None:
        """Set up what only this campaign needs."""

    def _volley(self, plausible: list[tuple[str, bytes]], topic: str) -> Iterator[tuple[str, list[bytes]]]:
        """Each API and version once in each of the ways, in an order of chance."""
        source = self._source
        order = list(plausible)
        source.shuffle(order)
        for _, frame in order:
            yield "changed", [changed(source, frame) for _ in range(source.randint(1, 3))]
            api = source.choice(self._apis)
            yield "made up", [made_up(source, api)]
            yield "made up, changed", [changed(source, made_up(source, source.choice(self._apis)))]
            if source.random() < 0.3:
                yield "random", [random_frame(source, self._apis)]
            if source.random() < 0.3:
                yield self._special(frame, topic)

    def _special(self, _frame: bytes, topic: str) -> tuple[str, list[bytes]]:
        """What only this listener takes."""
        source = self._source
        batches = [harm_batch(source, make_batch(source)) for _ in range(source.randint(1, 3))]
        return "batches", [produce_frame(topic, data) for data in batches]

    def _throw(self, kind: str, frames: list[bytes]) -> None:
        """Send frames and read until the connection ends, however it ends, but let it end."""
        outcome = self.outcome
        outcome.connections += 1
        outcome.frames += len(frames)
        outcome.by_kind[kind] += len(frames)
        self._recent.extend((kind, frame) for frame in frames)
        try:
            wire = Wire(self.port, timeout=PROBE_S)
        except OSError as error:
            raise self._violation(f"no connection is accepted: {error!r}") from None
        with wire:
            try:
                for frame in frames:
                    wire.send_frame(frame)
                # The end of a connection would hide that a request has got lost: what waits is dropped with it.
                if self._source.random() < ANSWERED_SHARE and not any(map(may_wait, frames)):
                    wire.send_frame(SENTINEL)
                    self._check_answers(wire, frames)
                wire.sock.shutdown(socket.SHUT_WR)
                while wire.sock.recv(65536):
                    outcome.answers += 1
            except TimeoutError:
                raise self._violation("a connection neither answered nor ended") from None
            except OSError:
                return

    def _check_answers(self, wire: Wire, frames: list[bytes]) -> None:
        """Read an answer to each frame in its turn, up to the sentinel; OSError if the connection is closed instead."""
        expected = [frame[4:8] for frame in frames if not has_no_answer(frame)]
        for number, correlation_id in enumerate((*expected, SENTINEL[4:8])):
            answer = wire.receive_frame()
            self.outcome.answers += 1
            if answer[:4] != correlation_id:
                raise self._violation(
                    f"answer {number} of {len(expected)} has the correlation id {answer[:4].hex()},"
                    f" not {correlation_id.hex()}: a request got lost"
                )
        self.outcome.checked += len(expected)

    def _probe(self, probe: Wire) -> None:
        begun = time.monotonic()
        try:
            probe.call("api_versions", 0)
        except OSError as error:
            raise self._violation(f"the probe got no reply: {error!r}") from None
        self.outcome.slowest_probe_ms = max(self.outcome.slowest_probe_ms, (time.monotonic() - begun) * 1000)

    def _check_node(self, probe: Wire, topic: str, before: Usage) -> None:
        outcome = self.outcome
        value = b"alive %d" % outcome.frames
        reply = probe.produce(topic, batch(value))
        if reply.error_code != 0:
            raise self._violation(f"a record was refused with {reply.error_code!r}")
        if value not in [row.value for row in rows(probe.fetch(topic, reply.base_offset).records)]:
            raise self._violation("a record that was acknowledged cannot be read")
        now = self._usage()
        outcome.memory_grown = now.memory_peak - before.memory_peak
        outcome.descriptors_grown = now.descriptors - before.descriptors
        outcome.sockets_grown = now.sockets - before.sockets
        if outcome.memory_grown > MEMORY_BYTES_MAX:
            raise self._violation(f"memory has grown by {outcome.memory_grown >> 20} MB")
        if outcome.descriptors_grown > DESCRIPTORS_MAX:
            raise self._violation(f"{outcome.descriptors_grown} more descriptors are open")
        if outcome.sockets_grown > SOCKETS_MAX:
            raise self._violation(f"{outcome.sockets_grown} more sockets are open")
        log = self._node.log()
        for complaint in LOG_COMPLAINTS:
            if complaint in log:
                where = log.index(complaint)
                raise self._violation(f"the log has {log[max(0, where - 300) : where + 1500]}")

    def _violation(self, text: str) -> Violation:
        frames = "\n".join(f"  {kind}: {frame[:400].hex()}" for kind, frame in self._recent)
        kept = self._keep_recent()
        return Violation(f"{text}\n{self.outcome}\nthe last frames:\n{frames}\nkept as {kept}")

    def _keep_recent(self) -> Path | None:
        """Add the last frames to the corpus: one of them has broken something."""
        return keep_input(self.corpus, join_parts([frame for _, frame in self._recent])) if self._recent else None

    def _usage(self) -> Usage:
        process = Path(f"/proc/{self._node.pid}")
        [line] = [line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM")]
        targets = []
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since the folder was read
                targets.append(str(descriptor.readlink()))
        sockets = sum(target.startswith("socket:") for target in targets)
        return Usage(int(line.split()[1]) * 1024, len(targets), sockets)


class ControllerCampaign(Campaign):
    """The same on the listener of the controller, on which brokers register and voters vote."""

    kind = "controller"

    def __init__(self, node: NodeWithController, seed: int) -> None:
        super().__init__(node, seed)
        self._controller_port = node.controller_port

    @property
    def port(self) -> int:
        return self._controller_port

    def _special(self, frame: bytes, _topic: str) -> tuple[str, list[bytes]]:
        source = self._source
        inner = source.choice((frame, made_up(source, source.choice(self._apis))))
        return "enveloped", [enveloped(source, inner)]
