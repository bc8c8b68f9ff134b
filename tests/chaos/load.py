"""The clients of a run: topics are created, clients write and read, then everything is read and checked."""

import itertools
import time
from random import Random
from typing import Self

from confluent_kafka.admin import AdminClient, NewTopic

from chaos.checker import Finding, check
from chaos.history import Fate, History, Place
from chaos.rights import (
    GUEST,
    INTRUDER,
    LOAD_USER,
    Intruder,
    RightsChanger,
    check_everywhere,
    grant_load,
    judge_rights,
)
from chaos.workers import (
    RECORD_BYTES_MAX,
    EagerTransactionalProducer,
    GroupConsumer,
    LargeProducer,
    PlainProducer,
    Stuck,
    TransactionalProducer,
    Worker,
    end,
    read_everything,
)
from harness.secured import ADMIN, ClusterSecurity

PARTITIONS = 4
WHOLE_S = 120.0
TOPICS = ("chaos-log", "chaos-txn")
LARGE_TOPIC = "chaos-large"


class Load:
    """Two plain producers, two transactional ones, one without a pause, a group of two readers; RF 3, two in sync.

    With `large_records` one more producer sends records from one byte to 8 MB.

    Leaving the block without having called `judge` ends the clients without a check.
    """

    def __init__(
        self, bootstrap: str, seed: int, *, large_records: bool = False, security: ClusterSecurity | None = None
    ) -> None:
        self.history = History()
        self._nodes = bootstrap.split(",")
        self._security = security
        self._admin = client_settings(bootstrap, security, ADMIN)
        self._client = client = client_settings(bootstrap, security, LOAD_USER)
        self._places = [Place(topic, index) for topic in TOPICS for index in range(PARTITIONS)]
        random = Random(seed)
        values = itertools.count(1)

        def parts(kind: type[PlainProducer] | type[TransactionalProducer], name: str, places: list[Place]) -> Worker:
            return kind(name, client, self.history, random.getrandbits(32), places, values)

        log, txn = self._places[:PARTITIONS], self._places[PARTITIONS:]
        topics = list(TOPICS)
        self._producers: list[Worker] = [
            *(parts(PlainProducer, f"plain-{name}", log) for name in "ab"),
            parts(TransactionalProducer, "txn-a", txn),
            parts(EagerTransactionalProducer, "txn-b", txn),
        ]
        if large_records:
            large = Place(LARGE_TOPIC, 0)
            self._places.append(large)
            topics.append(LARGE_TOPIC)
            self._producers.append(parts(LargeProducer, "large-a", [large]))
        self._readers: list[Worker] = [
            GroupConsumer(f"reader-{name}", client, self.history, random.getrandbits(32), topics) for name in "ab"
        ]
        self._intruders: list[Intruder] = []
        self._changers: list[RightsChanger] = []
        if security is not None:
            intruding = client_settings(bootstrap, security, INTRUDER)
            self._intruders = [Intruder("intruder", intruding, self.history, random.getrandbits(32), TOPICS[0])]
            self._changers = [RightsChanger("changer", self._admin, self.history, random.getrandbits(32))]

    def __enter__(self) -> Self:
        create_topics(self._admin)
        if self._security is not None:
            grant_load(AdminClient(dict(self._admin)))
        for worker in [*self._readers, *self._producers, *self._intruders, *self._changers]:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [*self._producers, *self._readers, *self._intruders, *self._changers]:
            worker.finish()

    @property
    def acknowledged(self) -> int:
        """Records that were acknowledged so far."""
        return sum(send.fate is Fate.OK for send in list(self.history.sends))

    @property
    def committed(self) -> int:
        """Transactions that were committed so far."""
        return sum(
            transaction.fate is Fate.OK and transaction.commits for transaction in list(self.history.transactions)
        )

    def wait_for_progress(self, records: int = 200, transactions: int = 3, timeout_s: float = WHOLE_S) -> None:
        """Return once so much more was acknowledged: clients get through now."""
        records += self.acknowledged
        transactions += self.committed
        deadline = time.monotonic() + timeout_s
        while self.acknowledged < records or self.committed < transactions:
            for worker in [*self._producers, *self._readers]:
                if worker.failure is not None:
                    raise worker.failure
            if time.monotonic() > deadline:
                raise Stuck(f"clients do not get through: {self._standing()}")
            time.sleep(0.05)

    def _standing(self) -> str:
        """What each producer waits for."""
        lines = []
        for worker in self._producers:
            open_sends = [
                send for send in self.history.sends if send.worker == worker.name and send.fate is not Fate.OK
            ]
            ended = sum(
                transaction.worker == worker.name and transaction.fate is Fate.OK
                for transaction in self.history.transactions
            )
            waiting = f"{len(open_sends)} unacknowledged" + (f", first {open_sends[0]}" if open_sends else "")
            lines.append(f"{worker.name}: {ended} transactions ended, {waiting}, doing {worker.doing}")
        return "; ".join(lines)

    def judge(self) -> list[Finding]:
        """Let the producers finish, wait until all is replicated and read, and look for violations.

        A client that is stuck is one, and what the others saw is judged all the same.
        """
        wait_until_whole(self._admin)
        stuck = end([*self._producers, *self._intruders, *self._changers])
        self.history.final = read_everything(self._client, self._places)
        self._wait_until_read()
        stuck += end(self._readers)
        findings = check(self.history) + self._judge_rights()
        return findings + ([Finding("stuck", len(stuck), tuple(stuck))] if stuck else [])

    def _judge_rights(self) -> list[Finding]:
        if self._security is None:
            return []
        admin = AdminClient(dict(self._admin))
        findings = judge_rights(self._intruders, self._changers[0], admin)
        guest = client_settings("", self._security, GUEST)
        without_effect = check_everywhere(self._nodes, admin, guest, TOPICS[0])
        if without_effect:
            findings.append(Finding("acl-without-effect", len(without_effect), tuple(without_effect)))
        return findings

    def _wait_until_read(self) -> None:
        """The readers have seen all there is, or never will."""
        everything = {value for rows in self.history.final.values() for _, value in rows}
        deadline = time.monotonic() + WHOLE_S
        while time.monotonic() < deadline:
            if everything <= {value for poll in list(self.history.polls) for _, value in poll.rows}:
                return
            time.sleep(0.2)


def client_settings(bootstrap: str, security: ClusterSecurity | None, user: str) -> dict[str, str]:
    """How a client reaches the nodes, and logs in where they require it."""
    return {"bootstrap.servers": bootstrap, **(security.client(user) if security is not None else {})}


def create_topics(client: dict[str, str]) -> None:
    """The topics of a run, three copies each."""
    admin = AdminClient(dict(client))
    topics = [NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"}) for name in TOPICS]
    # A batch must fit into a segment, and the nodes of a run have small ones.
    sizes = {"max.message.bytes": str(2 * RECORD_BYTES_MAX), "segment.bytes": str(4 * RECORD_BYTES_MAX)}
    topics.append(NewTopic(LARGE_TOPIC, 1, 3, config={"min.insync.replicas": "2", **sizes}))
    for future in admin.create_topics(topics, operation_timeout=30).values():
        future.result(60)


def wait_until_whole(client: dict[str, str]) -> None:
    """Return once every partition has a leader and all its replicas in sync."""
    admin = AdminClient(dict(client))
    deadline = time.monotonic() + WHOLE_S
    behind = "nothing is known of the topics"
    while time.monotonic() < deadline:
        topics = admin.list_topics(timeout=30).topics
        missing = [
            f"{topic.topic}-{partition.id} leader {partition.leader} in sync {partition.isrs}"
            for topic in topics.values()
            for partition in topic.partitions.values()
            if len(partition.isrs) < len(partition.replicas) or partition.leader < 0
        ]
        if topics and not missing:
            return
        behind = missing[0] if missing else behind
        time.sleep(0.2)
    raise Stuck(f"the cluster is not whole {WHOLE_S:.0f} s after the faults: {behind}")
