"""The records of kafka-console-consumer: from partitions that a group assigns, or from named partitions.

Positions are committed as Java's console consumer commits them (with enable.auto.commit): of every partition held, read
from or not, every few seconds and at the end, when what was fetched and not printed is given back first.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Generator, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from klamm.cli.kafka.options import Parsed, Usage
from klamm.cli.kafka.script import TIMEOUT_S, ToolFailed, settings
from klamm.model.errors import ErrorCode, KlammError

if TYPE_CHECKING:
    from klamm.client import Consumer
    from klamm.client.blocking_cluster import BlockingCluster
    from klamm.client.types import Record

FILES: Final = ("consumer.config",)
PAIRS: Final = ("consumer-property", "command-property")
_POLL_S: Final = 0.2
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Signals:
    """SIGINT and SIGTERM end the reading and not the process, which has offsets to commit and a group to leave.

    A second signal ends the process at once.
    """

    def __init__(self) -> None:
        self._caught = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only the main thread may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def caught_signal(self) -> int:
        """The number of the signal that arrived; 0 while there was none."""
        return self._caught

    def _catch(self, number: int, _: FrameType | None) -> None:
        self._caught = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def consumer_settings(parsed: Parsed) -> dict[str, Any]:
    """The settings of the consumer: flags before properties before a file, as Kafka's tool puts them together."""
    from klamm.cli.client_settings import read_properties

    filed: dict[str, str] = {}
    for name in (*FILES, "command-config"):
        if parsed.has(name):
            filed.update(read_properties(parsed.text(name)))
    own = settings(parsed, "consumer", *FILES, pairs=PAIRS)
    groups = [parsed.get("group"), filed.get("group.id"), parsed.pairs(*PAIRS).get("group.id")]
    given = list(dict.fromkeys(group for group in groups if group is not None))
    if len(given) > 1:
        names = ", ".join(f"'{group_id}'" for group_id in given)
        raise Usage(
            "The group ids provided in different places (directly using '--group', via '--consumer-property', or via"
            f" '--consumer.config') do not match. Detected group ids: {names}"
        )
    # A group assigns the partitions itself.
    if given and parsed.has("partition"):
        raise Usage("Options group and partition cannot be specified together.")
    reset = own.get("auto.offset.reset")
    if parsed.has("from-beginning") and reset not in (None, "earliest"):
        raise Usage(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', please remove one option",
            flags=False,
        )
    configured: dict[str, Any] = {
        "client.id": "console-consumer",
        **own,
        "bootstrap.servers": parsed.text("bootstrap-server"),
    }
    configured["auto.offset.reset"] = reset or ("earliest" if parsed.has("from-beginning") else "latest")
    if parsed.has("isolation-level"):
        configured["isolation.level"] = parsed.text("isolation-level")
    if given:
        configured["group.id"] = given[0]
    elif parsed.has("include"):
        # A pattern is a subscription, which needs a group; Kafka's tool draws a random name as well.
        configured["group.id"] = f"console-consumer-{time.time_ns() % 100_000}"
    if not given:
        # A group of a random name would leave its offsets behind in the cluster.
        configured.setdefault("enable.auto.commit", "false")
    return configured


class ConsoleSource:
    """Records as they arrive, until the timeout or a signal."""

    def __init__(self, parsed: Parsed, config: dict[str, Any], signals: Signals) -> None:
        self._parsed = parsed
        self._config = config
        self._signals = signals
        self.reached = False
        """Whether there is a cluster to read from."""
        timeout_ms = parsed.integer("timeout-ms", -1, bits=64)
        self._idle_s = None if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1000

    def records(self) -> Generator[Record]:
        """The records; a caller that stops early leaves the rest of the fetched records uncommitted."""
        from klamm.client import Consumer

        pattern = compile_pattern(self._parsed.text("include")) if self._parsed.has("include") else None
        # Before signals are caught: a broker that is not there is no reason to wait.
        consumer = Consumer({"bootstrap.timeout.ms": 0, **self._config})
        self.reached = True
        with self._signals, consumer:
            if pattern is not None:
                consumer.subscribe(pattern)
            elif not self._begin(consumer, self._parsed.text("topic")):
                return
            yield from self._poll(consumer)

    def _begin(self, consumer: Consumer, topic: str) -> bool:
        if not _NAME.fullmatch(topic) or topic in (".", ".."):
            raise KlammError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Invalid topics: [{topic}]")
        if "group.id" not in self._config:
            return self._assign_partitions(consumer, topic)
        consumer.subscribe([topic])
        return True

    def _poll(self, consumer: Consumer) -> Iterator[Record]:
        last = time.monotonic()
        while not self._signals.caught_signal() and not self._over(last):
            # Short polls: signals are noticed between them.
            wait_s = _POLL_S if self._idle_s is None else min(_POLL_S, self._idle_s)
            records = consumer.poll(wait_s)
            handed = 0
            try:
                for record in records:
                    if self._signals.caught_signal():
                        break
                    handed += 1
                    yield record
            finally:
                back: dict[tuple[str, int], int] = {}
                for record in records[handed:]:
                    back.setdefault((record.topic, record.partition), record.offset)
                # The position of the consumer is behind all fetched records; auto commit must not skip those not
                # printed.
                for place, offset in back.items():
                    consumer.seek(place, offset)
            if records:
                last = time.monotonic()

    def _over(self, since: float) -> bool:
        return self._idle_s is not None and time.monotonic() - since >= self._idle_s

    def _assign_partitions(self, consumer: Consumer, topic: str) -> bool:
        """Assign partitions to the consumer; without a group, all of the topic. False when the timeout has passed."""
        from klamm.client.blocking_cluster import BlockingCluster

        wanted = self._parsed.integer("partition")
        if wanted is None:
            own = settings(self._parsed, "admin", *FILES, pairs=PAIRS)
            with BlockingCluster(self._parsed.text("bootstrap-server"), TIMEOUT_S, own) as cluster:
                indexes = self._partitions(cluster, topic)
            consumer.assign([(topic, index) for index in indexes])
            return bool(indexes)
        place = (topic, wanted)
        consumer.assign([place])
        offset = self._parsed.text("offset", "").lower()
        if offset.isdecimal():
            consumer.seek(place, int(offset))
        elif offset == "earliest" or (not offset and self._parsed.has("from-beginning")):
            consumer.seek_to_beginning(place)
        else:
            consumer.seek_to_end(place)
        return True

    def _partitions(self, cluster: BlockingCluster, topic: str) -> list[int]:
        """The topic's partitions; as Kafka's consumer does, it lets the broker create a missing topic."""
        create = str(self._config.get("allow.auto.create.topics", "true")).lower() == "true"
        began = time.monotonic()
        while not self._signals.caught_signal() and not self._over(began):
            cluster.run(cluster.refresh([topic], create_missing=create))
            metadata = cluster.table.topics[topic]
            if not metadata.error_code and metadata.partitions:
                return sorted(metadata.partitions)
            code = ErrorCode(metadata.error_code)
            # LEADER_NOT_AVAILABLE and UNKNOWN_TOPIC_OR_PARTITION pass while the topic is being created.
            if code and not code.retriable:
                raise KlammError(code, f"{topic}: {code.text}")
            time.sleep(0.1)
        return []


def compile_pattern(text: str) -> re.Pattern[str]:
    """A pattern of topics; ToolFailed for what is none."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ToolFailed(f"ERROR Unknown error when running consumer: {text} is an invalid regex: {error}") from None
