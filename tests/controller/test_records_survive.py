"""No acknowledged record is lost by a decision: a random life of a cluster, with the records of every replica tracked.

A write is acknowledged when every replica in the ISR has it and the ISR is as large as the topic requires. Processes
crash and lose what they had not synced; leaders propose ISRs, some of which arrive late. An elected leader must have
all that was acknowledged, unless the topic allowed otherwise. Planted bugs show that a violation is detected.
"""

from random import Random

import pytest

from klamm.controller import brokers, partitions, reassignment
from klamm.controller.context import ControllerContext
from klamm.controller.partitions import ReplicaPlacement
from klamm.protocol.messages import alter_partition as ap
from klamm.protocol.messages import alter_partition_reassignments as apr
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest

BROKERS = range(1, 6)
STEPS = 150
SEEDS = 12
SEEDS_PER_BUG = 150
CONFIGS = [{"min.insync.replicas": "2"}, {"min.insync.replicas": "1"}, {"unclean.leader.election.enable": "true"}]
WEIGHTS = {"write": 10, "propose": 6, "deliver": 5, "delay": 4, "crash": 3, "restart": 5, "silence": 2, "shut_down": 1}
WEIGHTS |= {"die": 2, "move": 3, "take_back": 2, "elect": 1, "balance": 1, "send_heartbeat": 2, "allow": 1}


class Lost(AssertionError):
    """An acknowledged record is gone."""


class Ledger:
    """How many records of each partition every replica has, and how many were acknowledged."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.acked = {}
        self.held = {}
        self.seen = {}

    def observe(self):
        """Compare the image with the last one: elections and replicas that left."""
        for topic, index, partition in self.cluster.image.topics.partitions():
            key = (topic.name, index)
            before = self.seen.get(key)
            held = self.held.setdefault(key, {})
            for replica in set(held) - set(partition.replicas):
                del held[replica]
            for replica in partition.replicas:
                held.setdefault(replica, 0)
            self.acked.setdefault(key, 0)
            if partition.has_leader and (before is None or before.leader_epoch != partition.leader_epoch):
                self._elected(topic, key, before, partition)
            self.seen[key] = partition

    def _elected(self, topic, key, before, partition):
        held = self.held[key]
        if held[partition.leader] < self.acked[key]:
            allowed = self.cluster.image.topic_configs(topic.name).get("unclean.leader.election.enable") == "true"
            last_resort = before is not None and before.last_known_elr == (partition.leader,)
            if not partition.leader_recovery_state or not (allowed or last_resort):
                raise Lost(f"{key} is led by {partition.leader}: {held}, acknowledged {self.acked[key]}, {partition}")
            self.acked[key] = held[partition.leader]
        for replica in held:
            held[replica] = min(held[replica], held[partition.leader])


class Life:
    """Steps drawn from one seed; a bug is something done to the rules first."""

    def __init__(self, make_cluster, seed, *, elr=1):
        self.random = Random(seed)
        features = {"metadata.version": 30, "eligible.leader.replicas.version": elr}
        self.cluster = make_cluster(len(BROKERS), seed=seed, finalized_features=features)
        self.ledger = Ledger(self.cluster)
        self.lossy = elr == 1
        self.lives = dict.fromkeys(BROKERS, 1)
        self.down = set()
        self.late = []
        for number in range(4):
            replicas = [self.random.sample(BROKERS, 3) for _ in range(2)]
            self.cluster.create(f"t{number}", assignments=replicas, configs=CONFIGS[number % 3])
        self.ledger.observe()

    def live(self, steps=STEPS):
        for _ in range(steps):
            getattr(self, self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0])()
            self.ledger.observe()

    def decide(self, decision):
        return self.cluster.commit(decision)

    def any_partition(self):
        return self.random.choice(list(self.cluster.image.topics.partitions()))

    def broker(self, broker_id):
        return self.cluster.image.cluster.brokers[broker_id]

    # Data

    def write(self):
        for topic, index, partition in self.cluster.image.topics.partitions():
            minimum = int(self.cluster.image.topic_configs(topic.name).get("min.insync.replicas", "1"))
            minimum = min(minimum, len(partition.replicas))
            if partition.has_leader and len(partition.isr) >= minimum and not self.down & set(partition.isr):
                key = (topic.name, index)
                self.ledger.acked[key] += 1
                for replica in partition.isr:
                    self.ledger.held[key][replica] = self.ledger.acked[key]

    def crash(self):
        """A machine goes down; what was not synced is gone. The controller has not detected it yet."""
        broker_id = self.random.choice(BROKERS)
        if len(self.down) < 3:
            self.down.add(broker_id)

    def restart(self):
        """A process comes up, after a crash or a clean stop."""
        broker_id = self.random.choice(sorted(self.down) or list(BROKERS))
        crashed = broker_id in self.down
        self.lives[broker_id] += 1
        self.cluster.now_ms += 9_000
        known = self.cluster.image.cluster.get(broker_id)
        reply = self.cluster.register(
            broker_id,
            incarnation_id=bytes([broker_id]) * 12 + self.lives[broker_id].to_bytes(4, "big"),
            previous_broker_epoch=-1 if crashed or known is None else known.epoch,
        )
        if reply.error_code:
            return
        self.ledger.observe()
        self.down.discard(broker_id)
        if crashed and self.lossy:
            for held in self.ledger.held.values():
                if broker_id in held:
                    held[broker_id] = self.random.randrange(held[broker_id] + 1)
        if self.random.random() < 0.8:
            self.cluster.heartbeat(broker_id)

    # What leaders propose

    def _proposal(self):
        """A leader's request: replicas that have everything may join, all others but itself may leave."""
        topic, index, partition = self.any_partition()
        if not partition.has_leader or partition.leader in self.down:
            return None
        key = (topic.name, index)
        full = [r for r in partition.replicas if self.ledger.held[key][r] == self.ledger.acked[key]]
        isr = [r for r in full if r == partition.leader or (r not in self.down and self.random.random() < 0.7)]
        known = self.cluster.image.cluster.brokers
        data = ap.PartitionData(
            partition_index=index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[ap.BrokerState(broker_id=r, broker_epoch=known[r].epoch) for r in isr if r in known],
        )
        return ap.AlterPartitionRequest(
            broker_id=partition.leader,
            broker_epoch=known[partition.leader].epoch,
            topics=[ap.TopicData(topic_id=topic.id, partitions=[data])],
        )

    def propose(self):
        if (request := self._proposal()) is not None:
            self.decide(self.cluster.controller.alter_partition(request, 3))

    def delay(self):
        """A request that only shrinks or repeats may come late; one that adds must still be true then."""
        if (request := self._proposal()) is not None:
            self.late.append(request)

    def deliver(self):
        if self.late:
            request = self.late.pop(self.random.randrange(len(self.late)))
            if request.broker_id not in self.down:
                self._still_waits(request)

    def _still_waits(self, request):
        """Who has been proposed holds acknowledgements back until the answer: without it there is nothing to lose."""
        part = request.topics[0].partitions[0]
        topic = self.cluster.image.topics.by_id[request.topics[0].topic_id]
        partition = topic.partitions[part.partition_index]
        key = (topic.name, part.partition_index)
        same = (partition.leader_epoch, partition.partition_epoch) == (part.leader_epoch, part.partition_epoch)
        if same and partition.leader == request.broker_id:
            epochs = {state.broker_id: state.broker_epoch for state in part.new_isr_with_epochs}
            for replica, epoch in epochs.items():
                if self.broker(replica).epoch == epoch and replica not in self.down:
                    self.ledger.held[key][replica] = self.ledger.acked[key]
                elif self.broker(replica).epoch == epoch:
                    return
        self.decide(self.cluster.controller.alter_partition(request, 3))

    # What operators and time do

    def silence(self):
        self.cluster.silence(*self.down, self.random.choice(BROKERS))

    def die(self):
        broker_id = self.random.choice(sorted(self.down) or list(BROKERS))
        self.decide(self.cluster.controller.fence_dead_broker(broker_id, self.broker(broker_id).epoch))

    def send_heartbeat(self):
        broker_id = self.random.choice(BROKERS)
        if broker_id not in self.down:
            self.cluster.heartbeat(broker_id)

    def shut_down(self):
        broker_id = self.random.choice(BROKERS)
        if broker_id not in self.down:
            self.cluster.heartbeat(broker_id, want_shut_down=True)

    def _reassign(self, topic, index, replicas):
        part = apr.ReassignablePartition(partition_index=index, replicas=replicas)
        request = apr.AlterPartitionReassignmentsRequest(topics=[apr.ReassignableTopic(name=topic, partitions=[part])])
        self.decide(self.cluster.controller.alter_partition_reassignments(request))

    def move(self):
        topic, index, _ = self.any_partition()
        self._reassign(topic.name, index, self.random.sample(BROKERS, self.random.randrange(1, 4)))

    def take_back(self):
        moving = [(t, i) for t, i, p in self.cluster.image.topics.partitions() if p.is_reassigning]
        if moving:
            topic, index = self.random.choice(moving)
            self._reassign(topic.name, index, None)

    def elect(self):
        self.decide(self.cluster.controller.elect_leaders(ElectLeadersRequest(election_type=0, topic_partitions=None)))

    def allow(self):
        self.decide(self.cluster.controller.elect_unclean_leaders())

    def balance(self):
        self.decide(self.cluster.controller.balance_leaders())


@pytest.mark.parametrize("elr", [0, 1])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_acknowledged_is_kept(cluster, seed, elr):
    life = Life(cluster, seed, elr=elr)
    life.live()
    assert sum(life.ledger.acked.values()), f"seed {seed} acknowledged nothing"


# Bugs


def elects_any_replica(monkeypatch):
    def elect(_partition, replicas, _isr, _elr, acceptable, _election, *, elr_enabled):
        return next(((r, False) for r in replicas if acceptable(r)), (-1, False))

    monkeypatch.setattr(partitions, "_elect", elect)
    monkeypatch.setattr("klamm.metadata.image.PartitionImage.check", lambda _: None)


def forgets_that_a_process_crashed(monkeypatch):
    right = brokers.remove_from_isrs

    def remove_from_isrs(context, broker_id, affected, *, unclean=False):
        return right(context, broker_id, affected, unclean=unclean and False)

    monkeypatch.setattr(brokers, "remove_from_isrs", remove_from_isrs)


def ends_a_move_when_one_is_in_sync(monkeypatch):
    def finished(self, isr):
        staying = tuple(r for r in self.replicas if r not in self.removing)
        in_sync = tuple(r for r in isr if r not in self.removing)
        return (ReplicaPlacement(staying), in_sync or staying[:1]) if staying else (self, isr)

    monkeypatch.setattr(ReplicaPlacement, "complete_move", finished)


def cancels_moves_without_a_replica_in_sync(monkeypatch):
    right = reassignment.change_partition

    def change(context, topic, index, partition, **fields):
        placement = fields.get("placement")
        if placement is not None and not placement.adding and not set(fields.get("isr") or ()) & set(partition.isr):
            fields["isr"] = placement.replicas[:1]
        return right(context, topic, index, partition, **fields)

    monkeypatch.setattr(reassignment, "change_partition", change)
    monkeypatch.setattr(ControllerContext, "unclean_election_allowed", lambda _self, _topic: True)


def accepts_an_old_isr(monkeypatch):
    right = partitions._check_proposal

    def check(context, broker_id, partition, data, new_isr):
        data.partition_epoch = partition.partition_epoch
        right(context, broker_id, partition, data, new_isr)

    monkeypatch.setattr(partitions, "_check_proposal", check)


def accepts_an_old_process(monkeypatch):
    right = partitions._check_proposal

    def check(context, broker_id, partition, data, new_isr):
        right(context, broker_id, partition, data, [(replica, -1) for replica, _ in new_isr])

    monkeypatch.setattr(partitions, "_check_proposal", check)


def keeps_replicas_eligible_that_missed_writes(monkeypatch):
    monkeypatch.setattr(ControllerContext, "min_insync_replicas", lambda _self, _topic, replicas: replicas)


BUGS = [
    elects_any_replica,
    forgets_that_a_process_crashed,
    ends_a_move_when_one_is_in_sync,
    cancels_moves_without_a_replica_in_sync,
    accepts_an_old_isr,
    accepts_an_old_process,
    keeps_replicas_eligible_that_missed_writes,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_ledger_tells(cluster, monkeypatch, bug):
    bug(monkeypatch)
    for seed in range(SEEDS_PER_BUG):
        try:
            Life(cluster, seed).live()
        except Lost:
            return
    pytest.fail(f"{bug.__name__} was not noticed in {SEEDS_PER_BUG} lives")
