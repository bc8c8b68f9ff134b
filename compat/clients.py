"""The clients under one roof: each takes the same few orders, so a test is written once and run with all of them.

Java, franz-go and kafkajs run as one long-lived process each that reads an order per line and answers per line;
kcat is a process per question. What a client cannot do is said by its class, not guessed by a test.
"""

import base64
import json
import re
import select
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from compat import toolchain

ANSWER_TIMEOUT_S = 150.0
ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class ClientFailed(Exception):
    """A client answered an order with an error; `code` is Kafka's number where the client gives one."""

    def __init__(self, text: str, code: int = -1) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Record:
    """What a test sends, and what it expects back."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    partition: int = 0


@dataclass(frozen=True)
class Seen:
    """A record as a consumer saw it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass
class Stream:
    """What a background producer sent and what was acknowledged: number of the record -> its offset."""

    acked: dict[int, int]
    failures: list[str]
    sent: int


class Client:
    """The orders every test may give."""

    name = ""
    codecs: tuple[str, ...] = ALL_CODECS
    admin = True
    tells_offsets = True
    sets_timestamps = True
    streams = True

    def create(self, bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic; `max__message__bytes`-like names would be ugly, so dots are written as underscores."""
        dotted = {name.replace("_", "."): value for name, value in configs.items()}
        self.call("create", bootstrap=bootstrap, topic=topic, partitions=partitions, configs=dotted)

    def delete(self, bootstrap: str, topic: str) -> None:
        self.call("delete", bootstrap=bootstrap, topic=topic)

    def topics(self, bootstrap: str) -> dict[str, int]:
        return dict(self.call("topics", bootstrap=bootstrap)["topics"])

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        *,
        acks: str = "all",
        codec: str = "none",
        idempotent: bool = False,
        **extra: Any,
    ) -> list[int]:
        """Send, wait for the acknowledgements, give the offsets; raises ClientFailed for the first refused record."""
        answer = self.call(
            extra.pop("op", "produce"),
            bootstrap=bootstrap,
            topic=topic,
            acks=acks,
            codec=codec,
            idempotent=idempotent,
            linger_ms=extra.pop("linger_ms", 5),
            records=[_order(record) for record in records],
            **extra,
        )
        for result in answer["results"]:
            if "error" in result:
                raise ClientFailed(result["error"], result["code"])
        return [result["offset"] for result in answer["results"]]

    def consume(
        self,
        bootstrap: str,
        topic: str,
        partition: int = 0,
        *,
        offset: int = 0,
        count: int,
        isolation: str = "read_uncommitted",
    ) -> list[Seen]:
        answer = self.call(
            "consume",
            bootstrap=bootstrap,
            topic=topic,
            partition=partition,
            offset=offset,
            count=count,
            isolation=isolation,
        )
        return [_seen(record) for record in answer["records"]]

    def ends(self, bootstrap: str, topic: str, partition: int = 0) -> tuple[int, int]:
        answer = self.call("ends", bootstrap=bootstrap, topic=topic, partition=partition)
        return answer["earliest"], answer["latest"]

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int, partition: int = 0) -> int:
        answer = self.call(
            "offset_for_time", bootstrap=bootstrap, topic=topic, partition=partition, timestamp=timestamp
        )
        return int(answer["offset"])

    def stream_start(self, bootstrap: str, topic: str, *, acks: str, idempotent: bool, pause_ms: int = 1) -> None:
        self.call(
            "stream_start",
            bootstrap=bootstrap,
            topic=topic,
            partition=0,
            acks=acks,
            idempotent=idempotent,
            codec="none",
            linger_ms=0,
            pause_ms=pause_ms,
        )

    def stream_stop(self) -> Stream:
        answer = self.call("stream_stop")
        return Stream(dict(answer["acked"]), answer["failures"], answer["sent"])

    def call(self, op: str, **order: Any) -> dict[str, Any]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class ProcessClient(Client):
    """A client program that stays alive for the whole run."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._buffer = b""

    def command(self) -> list[str]:
        raise NotImplementedError

    def call(self, op: str, **order: Any) -> dict[str, Any]:
        return self.call_slow(ANSWER_TIMEOUT_S, op, **order)

    def call_slow(self, timeout_s: float, op: str, **order: Any) -> dict[str, Any]:
        """`call` for an order that takes as long as the machine is slow."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **order}).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line(timeout_s))
        if "error" in answer:
            raise ClientFailed(f"{self.name} {op}: {answer['error']}", answer.get("code", -1))
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        chunks = [self._buffer]
        while b"\n" not in chunks[-1]:
            ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
            if not ready:
                raise ClientFailed(f"{self.name} did not answer in {timeout_s:.0f} s")
            more = self._process.stdout.read1(1 << 20)  # type: ignore[union-attr, attr-defined]
            if not more:
                raise ClientFailed(f"{self.name} ended with {self._process.wait()}")
            chunks.append(more)
        line, _, self._buffer = b"".join(chunks).partition(b"\n")
        return line


class JavaClient(ProcessClient):
    """Kafka's own producer, consumer and admin client; also runs Kafka's tools in the same JVM."""

    name = "java"

    def command(self) -> list[str]:
        return [*toolchain.java_command(heap_mb=256, classes=True, log_level="off"), "Driver"]

    def tool(self, main: str, *args: str) -> "ToolOutput":
        answer = self.call("tool", main=main, args=list(args))
        return ToolOutput(answer["exit"], answer["out"], answer["err"])


@dataclass(frozen=True)
class ToolOutput:
    """How a command-line tool ended and what it printed."""

    exit: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class GoClient(ProcessClient):
    """franz-go."""

    name = "franz-go"

    def command(self) -> list[str]:
        return [str(toolchain.go_program())]


class JsClient(ProcessClient):
    """kafkajs: its consumer is always a member of a group, here one of its own for every order to consume."""

    name = "kafkajs"
    codecs = ("none", "gzip")

    def command(self) -> list[str]:
        return toolchain.js_program()


@dataclass
class KcatClient(Client):
    """kcat (librdkafka 2.0): creates topics by writing to them, and keeps offsets to itself."""

    name: str = "kcat"
    admin: bool = False
    tells_offsets: bool = False
    sets_timestamps: bool = False
    streams: bool = False
    settings: list[str] = field(default_factory=lambda: ["-X", "message.max.bytes=20000000"])

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        *,
        acks: str = "all",
        codec: str = "none",
        idempotent: bool = False,
        **_extra: Any,
    ) -> list[int]:
        common = ["-P", "-b", bootstrap, "-t", topic, "-z", codec, "-X", f"acks={acks}", *self.settings]
        common += ["-X", f"enable.idempotence={str(idempotent).lower()}", "-D", "\\x1e", "-Z"]
        for record in records:
            command = [*common, "-p", str(record.partition)]
            for name, value in record.headers:
                command += ["-H", name if value is None else f"{name}={value.decode()}"]
            text = record.value or b""
            if record.key is not None:
                command += ["-K", "\\x1f"]
                text = record.key + b"\x1f" + text
            self._run(command, text)
        return [-1] * len(records)

    def consume(
        self,
        bootstrap: str,
        topic: str,
        partition: int = 0,
        *,
        offset: int = 0,
        count: int,
        isolation: str = "read_uncommitted",
    ) -> list[Seen]:
        command = ["-C", "-b", bootstrap, "-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count)]
        text = self._run([*command, "-e", "-q", "-J", "-X", f"isolation.level={isolation}"])
        return [_kcat_seen(json.loads(line)) for line in text.splitlines()]

    def topics(self, bootstrap: str) -> dict[str, int]:
        metadata = json.loads(self._run(["-L", "-J", "-b", bootstrap]))
        return {topic["topic"]: len(topic["partitions"]) for topic in metadata["topics"]}

    def ends(self, bootstrap: str, topic: str, partition: int = 0) -> tuple[int, int]:
        return (
            self.offset_for_time(bootstrap, topic, -2, partition),
            self.offset_for_time(bootstrap, topic, -1, partition),
        )

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int, partition: int = 0) -> int:
        text = self._run(["-Q", "-b", bootstrap, "-t", f"{topic}:{partition}:{timestamp}"])
        match = re.search(r"offset (-?\d+)", text)
        assert match, text
        return int(match.group(1))

    def _run(self, arguments: list[str], stdin: bytes = b"") -> str:
        done = subprocess.run(["kcat", *arguments], input=stdin, capture_output=True, timeout=60, check=False)
        problems = done.stderr.decode()
        if done.returncode != 0 or "Delivery failed" in problems:
            raise ClientFailed(f"kcat: {problems}", 10 if "Message size too large" in problems else -1)
        return done.stdout.decode()


def _kcat_seen(shown: dict[str, Any]) -> Seen:
    flat = shown.get("headers", [])
    headers = tuple((name, _utf8(value)) for name, value in zip(flat[::2], flat[1::2], strict=True))
    return Seen(shown["offset"], shown["ts"], _utf8(shown["key"]), _utf8(shown["payload"]), headers)


def _utf8(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _order(record: Record) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "key": _base64(record.key),
        "value": _base64(record.value),
        "headers": [[name, _base64(value)] for name, value in record.headers],
        "timestamp": record.timestamp,
    }


def _seen(shown: dict[str, Any]) -> Seen:
    headers = tuple((name, _bytes(value)) for name, value in shown["headers"])
    return Seen(shown["offset"], shown["timestamp"], _bytes(shown["key"]), _bytes(shown["value"]), headers)


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
