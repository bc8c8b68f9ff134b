"""Clients of a run, each in a thread: librdkafka producers, plain and transactional, and consumers in a group."""

import contextlib
import itertools
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from random import Random

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from chaos.history import Fate, History, Place, Poll, Send, Transaction

OUTSTANDING_MAX = 100
PAUSE_S = 0.004
RECORD_BYTES_MAX = 8_000_000
BURST_BYTES = 12_000_000
LARGE_BYTES_MAX = 150_000_000
"""What a producer of large records writes in one run; after that its records are small."""
CLIENT_LOG_LINES = 12
SETTLE_S = 120.0
"""How long a client may take to get everything through once the cluster is healthy again."""
REPLACED_S = 60.0
"""After so long without an answer, while faults go on, a transactional producer is replaced by a new one."""


class Stuck(AssertionError):
    """A client did not get through although the cluster was healthy."""


class Hung(Exception):
    """A client did not get through for long, while there were faults."""


class ClientLog:
    """The last log lines of librdkafka, shown when a client is stuck.

    The lines come when the client is polled, late while it commits. With $KLAMM_CHAOS_DEBUG they go to stderr instead,
    all of them and each at its time.
    """

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=CLIENT_LOG_LINES)

    def log(self, level: int, line: str, *args: object) -> None:
        """Called by librdkafka's binding in place of a logger's method."""
        del level
        clock = time.time()
        self._last.append(f"{clock_time(clock)}.{int(clock % 1 * 1000):03} " + line % args)

    def config(self, **contexts: str) -> dict[str, object]:
        """Settings for the log of a client, by default of `debug`."""
        debug = os.environ.get("KLAMM_CHAOS_DEBUG")
        return {"debug": debug} if debug else {"logger": self, **contexts}

    def __str__(self) -> str:
        return "\n".join(self._last)


def clock_time(clock: float) -> str:
    """The time of day of a Unix time, to compare with the logs of nodes."""
    return time.strftime("%H:%M:%S", time.localtime(clock))


class Worker(threading.Thread, ABC):
    """A thread that works until it is stopped, then finishes what it has begun; `failure` is its error."""

    def __init__(self, name: str, client: dict[str, str], history: History, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.client = client
        """Where the nodes are, and how to log in."""
        self.history = history
        self.random = Random(seed)
        self.stopping = threading.Event()
        self.healed_at = math.inf
        self.failure: BaseException | None = None
        self.doing = ""
        self.client_log = ClientLog()

    def run(self) -> None:
        """Work, and keep what went wrong for the thread that joins."""
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - shown by the run
            self.failure = error

    def finish(self) -> None:
        """Begin nothing new; from now on no fault is an excuse."""
        self.healed_at = time.monotonic()
        self.stopping.set()

    @abstractmethod
    def work(self) -> None:
        """What the worker does."""


def producer_config(client: dict[str, str], name: str, log: ClientLog) -> dict[str, object]:
    """A producer that must lose nothing, and gives up only long after the run."""
    return {
        **client,
        "client.id": name,
        "acks": "all",
        "enable.idempotence": True,
        "max.in.flight.requests.per.connection": 5,
        "linger.ms": 2,
        "message.timeout.ms": 300_000,
        "socket.timeout.ms": 10_000,
        "reconnect.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": 5_000,
        "error_cb": lambda _: None,
    } | log.config(debug="eos")


class PlainProducer(Worker):
    """Sends numbers one after the other to all partitions of a topic."""

    pause_s = PAUSE_S
    """Between two records."""

    def __init__(self, name, client, history, seed, places: list[Place], values: "itertools.count[int]") -> None:
        super().__init__(name, client, history, seed)
        self._places = places
        self._values = values
        self._outstanding = 0

    def work(self) -> None:
        """Until it is stopped, then until everything is acknowledged."""
        producer = Producer(self._config())
        for number in itertools.count():
            if self.stopping.is_set():
                break
            self._wait(producer)
            send = Send(self.name, number, self.random.choice(self._places), next(self._values))
            self.history.sends.append(send)
            self._outstanding += 1
            producer.produce(
                send.place.topic,
                self._body(send.value),
                partition=send.place.partition,
                on_delivery=self._delivered(send),
            )
            producer.poll(self.pause_s)
        if producer.flush(SETTLE_S):
            left = f"{self.name}: {len(producer)} records were not acknowledged {SETTLE_S:.0f} s after the faults"
            raise Stuck(f"{left}\n{self.client_log}")

    def _config(self) -> dict[str, object]:
        return producer_config(self.client, self.name, self.client_log)

    def _body(self, value: int) -> bytes:
        return b"%d" % value

    def _wait(self, producer: Producer) -> None:
        """Do not run ahead of the answers without a limit."""
        while self._outstanding >= OUTSTANDING_MAX and not self.stopping.is_set():
            producer.poll(0.05)

    def _delivered(self, send: Send):
        def note(error: KafkaError | None, message: Message) -> None:
            self._outstanding -= 1
            if error is None:
                send.note_acknowledged(message.offset())

        return note


class LargeProducer(PlainProducer):
    """Sends records from one byte to 8 MB in bursts without waiting for answers, and pauses between the bursts.

    A node reads a large request to its end and no further, and stops reading a connection that it owes answers:
    the small requests and long pauses of the others never bring the two together.
    """

    pause_s = 0.0

    def __init__(self, name, client, history, seed, places: list[Place], values: "itertools.count[int]") -> None:
        super().__init__(name, client, history, seed, places, values)
        self._burst = 0
        self._left = LARGE_BYTES_MAX

    def _config(self) -> dict[str, object]:
        # Single records, so that every size becomes a request of that size.
        return super()._config() | {"message.max.bytes": 2 * RECORD_BYTES_MAX, "batch.num.messages": 1}

    def _body(self, value: int) -> bytes:
        """The number, and spaces behind it up to a size that is as often small as large."""
        size = int(RECORD_BYTES_MAX ** self.random.random()) if self._left > 0 else 1
        self._left -= size
        self._burst += size
        return (b"%d" % value).ljust(size)

    def _wait(self, producer: Producer) -> None:
        if self._burst < BURST_BYTES and self._outstanding < OUTSTANDING_MAX:
            return
        self._burst = 0
        while self._outstanding and not self.stopping.is_set():
            producer.poll(0.05)
        self.stopping.wait(self.random.uniform(0.2, 1.5))


class TransactionalProducer(Worker):
    """Writes small transactions over several partitions; some are aborted on purpose."""

    pause_s = PAUSE_S
    """Between two transactions."""

    def __init__(self, name, client, history, seed, places: list[Place], values: "itertools.count[int]") -> None:
        super().__init__(name, client, history, seed)
        self._places = places
        self._values = values
        self._number = 0
        self._sends: list[Send] = []
        """The records of the open transaction."""

    def work(self) -> None:
        """Until it is stopped; a producer that became unusable is replaced by a new one with the same id."""
        producer = self._new()
        for index in itertools.count():
            if self.stopping.is_set():
                break
            transaction = Transaction(self.name, index, commits=self.random.random() > 0.2)
            self.history.transactions.append(transaction)
            try:
                self._transact(producer, transaction)
                if not transaction.commits and any(send.fate is not Fate.OK for send in self._sends):
                    # librdkafka (2.x) drops what it had to send again and uses its sequence numbers for other records.
                    # A broker that has the dropped ones, any broker, takes the others for repetitions.
                    producer = self._new()
            except KafkaException as error:
                producer = self._recover(producer, transaction, error.args[0])
            except Hung as hung:
                self._note(hung)
                producer = self._new()
            producer.poll(self.pause_s)

    def _new(self) -> Producer:
        config = producer_config(self.client, self.name, self.client_log)
        config |= {"transactional.id": self.name, "transaction.timeout.ms": 20_000, "message.timeout.ms": 20_000}
        while True:
            producer = Producer(config)
            try:
                self._retry(lambda: producer.init_transactions(10), "init_transactions")  # noqa: B023 - called at once
            except Hung as hung:
                self._note(hung)
            else:
                return producer

    def _note(self, hung: Hung) -> None:
        self.history.hung.append(f"{clock_time(time.time())} {self.name}: {hung}\n{self.client_log}")

    def _retry(self, call: Callable[[], object], what: str) -> None:
        """Repeat a call while its error is retriable."""
        begun = time.monotonic()
        self.doing = what
        while True:
            try:
                call()
            except KafkaException as error:
                self.doing = f"{what}: {error}"
                if not error.args[0].retriable():
                    raise
                now = time.monotonic()
                if now > max(begun, self.healed_at) + SETTLE_S:
                    raise Stuck(f"{self.name} does not get through: {self.doing}\n{self.client_log}") from error
                if not self.stopping.is_set() and now > begun + REPLACED_S:
                    raise Hung(self.doing) from error
            else:
                self.doing = ""
                return

    def _transact(self, producer: Producer, transaction: Transaction) -> None:
        self._sends = []
        producer.begin_transaction()
        for place in self._choose_places():
            send = Send(self.name, self._number, place, next(self._values), transaction.number)
            self._number += 1
            self._sends.append(send)
            self.history.sends.append(send)
            producer.produce(place.topic, b"%d" % send.value, partition=place.partition, on_delivery=_note(send))
        if transaction.commits:
            self._retry(lambda: producer.commit_transaction(10), "commit")
        else:
            if self.random.random() < 0.5:
                producer.flush(5)  # so that what is aborted lies in the log
            self._retry(lambda: producer.abort_transaction(10), "abort")
        transaction.fate = Fate.OK

    def _choose_places(self) -> list[Place]:
        """Where the next transaction writes, a record each."""
        return self.random.choices(self._places, k=self.random.randint(1, 6))

    def _recover(self, producer: Producer, transaction: Transaction, error: KafkaError) -> Producer:
        if error.code() == KafkaError.INVALID_TXN_STATE and (
            # librdkafka ends what may never have begun when it aborts, and Kafka refuses that as well.
            transaction.commits or any(send.fate is Fate.OK for send in self._sends)
        ):
            with contextlib.suppress(KafkaException):  # the fatal error itself
                producer.poll(0)  # what librdkafka has logged comes with a poll
            self.history.refused.append(f"{self.name} in {transaction}: {error}\n{self.client_log}")
        if error.txn_requires_abort():
            try:
                self._retry(lambda: producer.abort_transaction(10), "abort after an error")
            except KafkaException:
                return self._new()
            except Hung as hung:
                self._note(hung)
                return self._new()
            transaction.commits = False
            transaction.fate = Fate.OK
            return producer
        return self._new()


class EagerTransactionalProducer(TransactionalProducer):
    """Begins its next transaction as soon as the last is decided, on all partitions, several records to each.

    Its first batches reach other nodes while the markers of the last transaction are still on their way.
    """

    pause_s = 0.0

    def _choose_places(self) -> list[Place]:
        return self._places * self.random.randint(1, 3)


class GroupConsumer(Worker):
    """Reads along in a group, committed records only."""

    def __init__(self, name, client, history, seed, topics: list[str]) -> None:
        super().__init__(name, client, history, seed)
        self._topics = topics
        self._session = 0

    def work(self) -> None:
        """Until it is stopped."""
        consumer = Consumer(
            {
                **self.client,
                "client.id": self.name,
                "group.id": "chaos-readers",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
                "session.timeout.ms": 8_000,
                "heartbeat.interval.ms": 500,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 5_000,
                "error_cb": lambda _: None,
            }
            | self.client_log.config()
        )
        consumer.subscribe(self._topics, on_assign=self._moved, on_revoke=self._moved, on_lost=self._moved)
        try:
            while not self.stopping.is_set():
                session = self._session
                messages = consumer.consume(200, 0.1)
                if self._session != session:
                    session = self._session
                for message in messages:
                    if message.error() is None:
                        place = Place(message.topic(), message.partition())
                        row = (message.offset(), int(message.value()))
                        self.history.polls.append(Poll(self.name, session, place, [row]))
        finally:
            consumer.close()

    def _moved(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        del consumer, partitions
        self._session += 1


def read_everything(client: dict[str, str], places: list[Place]) -> dict[Place, list[tuple[int, int]]]:
    """Every partition from its start to its end, committed records only; a transaction left open is a failure."""
    consumer = Consumer(
        {
            **client,
            "group.id": "chaos-final",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "logger": ClientLog(),
        }
    )
    rows: dict[Place, list[tuple[int, int]]] = {place: [] for place in places}
    ends = {}
    try:
        for place in places:
            ends[place] = consumer.get_watermark_offsets(TopicPartition(*place), timeout=SETTLE_S)[1]
        consumer.assign([TopicPartition(*place, 0) for place in places])
        waiting = set(places)
        deadline = time.monotonic() + SETTLE_S
        while waiting:
            if time.monotonic() > deadline:
                raise Stuck(f"{min(waiting)} cannot be read to its end {ends[min(waiting)]}")
            for message in consumer.consume(1000, 0.5):
                place = Place(message.topic(), message.partition())
                if message.error() is None:
                    rows[place].append((message.offset(), int(message.value())))
                elif message.error().code() == KafkaError._PARTITION_EOF and message.offset() >= ends[place]:
                    waiting.discard(place)
    finally:
        consumer.close()
    return rows


def _note(send: Send):
    def note(error: KafkaError | None, message: Message) -> None:
        if error is None:
            send.note_acknowledged(message.offset())

    return note


def end(workers: list[Worker]) -> list[str]:
    """Stop workers and wait for each; what kept them from ending, in words."""
    for worker in workers:
        worker.finish()
    failures = []
    for worker in workers:
        worker.join(2 * SETTLE_S)
        if worker.failure is not None:
            failures.append(f"{worker.name}: {worker.failure!r}")
        elif worker.is_alive():
            failures.append(f"{worker.name} does not end: {worker.doing}\n{worker.client_log}")
    return failures
