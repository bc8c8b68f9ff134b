"""Random lives of transactions: clients that crash, twins that come back, requests that arrive late or twice.

Every value a client writes belongs to one transaction of that client. After every step readers of committed data see
only values of transactions whose client requested a commit; when no work is left, each of those is seen
whole, once, in order, or not at all, and nothing hangs. The offsets a client commits along are such values too: the
coordinator of its group must say at every step what the log says.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from klamm.coordinator.transactions.markers import PendingMarkers
from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
from klamm.coordinator.transactions.state import SETTLED
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition

from .transactions_world import OFFSETS, Answer, World

PARTITIONS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
IDS = ["x", "y"]
BUSY = (ErrorCode.CONCURRENT_TRANSACTIONS, None)


@dataclass
class Txn:
    """One transaction as its client sees it."""

    number: int
    acked: dict[TopicPartition, list[int]] = field(default_factory=dict)
    wanted: str = "open"
    """"commit" or "abort" once the client requested it."""
    outcome: str = "unknown"
    """What the coordinator confirmed: "commit" or "abort"."""


@dataclass
class Client:
    """A producer process with a transactional id; it may not know that a twin has replaced it."""

    name: str
    producer: ProducerIdAndEpoch | None = None
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    txn: Txn | None = None
    ending: tuple[ProducerIdAndEpoch, bool] | None = None
    """An EndTxn that was sent and not answered."""
    unsure: bool = False
    """A write of this epoch has an unknown outcome, so its sequence number must not be used again."""


class Machine:
    """Makes random steps and checks after each."""

    def __init__(self, seed: int, version: int) -> None:
        self.random = Random(seed)
        self.world = World(version)
        self.strict = version >= 2
        """Version 1 cannot tell a late EndTxn or marker from one of the next transaction under the same epoch: that is
        why there is a version 2. Such lateness is kept from it."""
        self.clients: list[Client] = []
        self.txns: dict[int, Txn] = {}
        self.values: dict[int, Txn] = {}
        self.late: list[Callable[[], Any]] = []
        """Requests on their way: delivered later, or never, or twice."""
        self.old_markers: list[tuple[PendingMarkers, TopicPartition]] = []
        self.given: dict[ProducerIdAndEpoch, Client] = {}
        self.numbers = itertools.count(1)
        self.newest: dict[str, tuple[int, int]] = {}

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.check()
        self.come_to_rest()
        self.check()
        self.check_at_rest()

    def step(self) -> None:
        chance = self.random.random()
        if not self.clients or chance < 0.06:
            self.clients.append(Client(self.random.choice(IDS)))
        elif chance < 0.60:
            self.act(self.random.choice(self.clients[-4:]))
        elif chance < 0.80:
            self.write_a_marker()
        elif chance < 0.86 and self.late:
            request = self.random.choice(self.late)
            request()
            if self.random.random() < 0.7:
                self.late.remove(request)
        elif chance < 0.885:
            self.world.crash()
        elif chance < 0.90:
            self.world.offsets.reload()
        elif chance < 0.93:
            self.world.tick(self.random.choice([1_000, 20_000, 70_000]))
        elif chance < 0.96 and self.old_markers and self.strict:
            markers, name = self.random.choice(self.old_markers)
            self.world.partition(name).write_marker(markers)
        elif self.world.commit_at_once:
            self.world.commit_at_once = self.random.random() < 0.6
        else:
            self.world.commit_at_once = True
            self.world.commit()

    def write_a_marker(self) -> None:
        owed = [markers for markers in self.world.tracker if markers.partitions]
        if not owed:
            for markers in self.world.tracker:
                self.world.complete_if_written(markers)
            return
        markers = self.random.choice(owed)
        name = self.random.choice(sorted(markers.partitions))
        self.old_markers = [*self.old_markers[-5:], (markers, name)]
        if self.random.random() < 0.2:
            self.world.tracker.record_response(markers, name, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if self.random.random() < 0.1:
            self.world.partition(name).write_marker(markers)  # written, but the answer is lost
            return
        self.world.write_markers(markers, name)

    # Clients

    def act(self, client: Client) -> None:
        if client.producer is None:
            self.initialize(client)
        elif client.ending is not None:
            self.end(client, *client.ending)
        elif self.random.random() < 0.7:
            self.produce(client)
        elif client.txn is not None:
            committed = self.random.random() < 0.6
            client.txn.wanted = "commit" if committed else "abort"
            self.end(client, client.producer, committed)
        elif self.random.random() < 0.1:
            client.producer = None

    def initialize(self, client: Client) -> None:
        answer = self.world.init(client.name)
        if answer.code == ErrorCode.NONE:
            producer: ProducerIdAndEpoch = answer.value
            assert producer not in self.given, f"{producer} was given out twice"
            self.given[producer] = client
            client.producer = producer
            client.sequences.clear()
            client.txn = None
            client.ending = None

    def produce(self, client: Client) -> None:
        producer = client.producer
        assert producer is not None
        if client.txn is None:
            client.txn = Txn(next(self.numbers))
            self.txns[client.txn.number] = client.txn
        txn, name = client.txn, self.random.choice([*PARTITIONS, OFFSETS])
        value = next(self.numbers)
        self.values[value] = txn
        sequence = client.sequences.get(name, 0)
        if self.world.version < 2 and self.world.add(client.name, producer, name).code != ErrorCode.NONE:
            self.give_up(client)
            return

        if name == OFFSETS:
            self.send_offset(client, txn, producer, value)
            return

        def send() -> ErrorCode:
            return self.world.produce(client.name, producer, name, sequence, value)

        if self.random.random() < 0.15:
            self.late.append(send)
            self.give_up(client)
            return
        error = send()
        if self.random.random() < 0.2:
            self.late.append(send)
        if error == ErrorCode.NONE:
            client.sequences[name] = sequence + 1
            txn.acked.setdefault(name, []).append(value)
        else:
            self.give_up(client)

    def send_offset(self, client: Client, txn: Txn, producer: ProducerIdAndEpoch, offset: int) -> None:
        """Commit an offset along with the transaction; the request may be late, but a connection gives it once."""
        sent: list[ErrorCode] = []

        def send() -> None:
            if not sent:
                sent.append(self.world.commit_offset(client.name, producer, f"group of {client.name}", offset))

        if self.strict and self.random.random() < 0.2:
            self.late.append(send)
            self.give_up(client)
            return
        send()
        if sent[0] == ErrorCode.NONE:
            txn.acked.setdefault(OFFSETS, []).append(offset)
        else:
            self.give_up(client)

    def give_up(self, client: Client) -> None:
        """Something went wrong: abort if that is still possible, or begin anew."""
        if self.random.random() < 0.5 and client.producer is not None and client.txn is not None:
            client.txn.wanted = "abort"
            client.unsure = not self.strict
            client.ending = (client.producer, False)
        else:
            client.producer = None
            client.txn = None

    def end(self, client: Client, producer: ProducerIdAndEpoch, committed: bool) -> None:
        txn = client.txn
        assert txn is not None
        if self.random.random() < 0.2 and self.strict:
            self.late.append(lambda: self.world.end(client.name, producer, committed=committed))
        answer = self.world.end(client.name, producer, committed=committed)
        if answer.code in BUSY or (answer.code == ErrorCode.NONE and self.random.random() < 0.15):
            client.ending = (producer, committed)
            return
        client.ending = None
        if answer.code == ErrorCode.NONE:
            txn.outcome = "commit" if committed else "abort"
            if answer.value != producer:
                assert self.given.setdefault(answer.value, client) is client, f"{answer.value} was given out twice"
                client.sequences.clear()
            client.producer = answer.value
        if answer.code != ErrorCode.NONE or client.unsure:
            client.producer = None
        client.unsure = False
        client.txn = None

    # What must hold

    def check(self) -> None:
        self.world.shard.check()
        for metadata in self.world.shard:
            if metadata.transactional_id in self.newest and self.world.committed == len(self.world.log):
                known = self.newest[metadata.transactional_id]
                place = (metadata.producer_id, metadata.producer_epoch)
                assert place >= known, f"the epoch of {metadata.transactional_id} went back: {known} -> {place}"
                self.newest[metadata.transactional_id] = place
            elif self.world.committed == len(self.world.log):
                self.newest[metadata.transactional_id] = (metadata.producer_id, metadata.producer_epoch)
        for name, partition in self.world.partitions.items():
            seen = partition.read_committed()
            assert len(seen) == len(set(seen)), f"{name}: a value is there twice"
            for value in seen:
                txn = self.values[value]
                assert txn.wanted == "commit", f"{name}: value {value} of transaction {txn} is seen"
                assert txn.outcome != "abort", f"{name}: value {value} of aborted {txn} is seen"

        offsets = self.world.offsets
        offsets.shard.check()
        assert offsets.committed() == offsets.written("commit"), "a group goes on elsewhere than its log says"
        unsettled = set(offsets.written("open"))
        assert set(offsets.shard.offsets.open_transactions) == unsettled, "an offset waits for no transaction"

    def come_to_rest(self) -> None:
        self.world.commit_at_once = True
        self.world.commit()
        for _ in range(3):
            self.world.pay()
            self.world.tick(70_000)
        self.world.pay()

    def check_at_rest(self) -> None:
        for metadata in self.world.shard:
            assert metadata.state in SETTLED, f"{metadata.transactional_id} hangs in {metadata.state.text}"
        seen = {name: partition.read_committed() for name, partition in self.world.partitions.items()}
        for name, partition in self.world.partitions.items():
            hanging = partition.producers.open_transactions()
            assert not hanging, f"{name}: transactions hang at {hanging}"
        for txn in self.txns.values():
            visible = [
                [value for value in seen.get(name, []) if self.values[value] is txn] == values
                for name, values in txn.acked.items()
            ]
            if txn.outcome == "commit":
                assert all(visible), f"a committed transaction is not whole: {txn}, {seen}"
            some = any(value in seen.get(name, []) for name, values in txn.acked.items() for value in values)
            assert all(visible) or not some, f"a transaction is seen in part: {txn}, {seen}"


def run_life(seed: int, version: int, steps: int = 180) -> Machine:
    """One random life, which the seed determines."""
    machine = Machine(seed, version)
    machine.run(steps)
    return machine


__all__ = ["Answer", "Machine", "run_life"]
