"""The same random heartbeats to Apache Kafka and to Klamm: all error codes and the final stable states agree.

Which partitions move, and so how many heartbeats a member needs, depends on the assignor: in a stable group every
member has its share, at the group's epoch. Kafka counts epochs of a new group from 2, Klamm from 1, so the test uses
differences of epochs. One difference is left out: Klamm lets a static member rejoin under its own member id.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from compat.brokers import KINDS
from compat.clients import JavaClient
from klamm.client.blocking_cluster import BlockingConnection
from klamm.protocol.messages import consumer_group_describe, find_coordinator, offset_commit
from klamm.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions

SEEDS = range(25)
STEPS = 60
BUSY = (14, 15, 16)
FENCED, UNKNOWN = 110, 25
TOPIC = "beside-consumer-groups"
PARTITIONS = 12
"""Shared out evenly among one to four members."""
MEMBERS_MAX = 4
SETTINGS = {
    "group.consumer.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
}


@dataclass
class Member:
    """The state of a client, at each of the brokers."""

    member_id: str
    instance_id: str | None
    epoch: int = 0
    owned: dict[bytes, list[int]] = field(default_factory=dict)
    present: bool = False


class Answerer:
    """One broker and the members as they live there."""

    def __init__(self, port: int) -> None:
        self.connection = BlockingConnection("127.0.0.1", port)
        self.members: dict[str, Member] = {}
        self.group = ""

    def begin(self, group: str) -> None:
        self.group = group
        self.members = {}
        request = find_coordinator.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        self._until_free(lambda: self.connection.ask(request, 4), lambda answer: answer.coordinators[0].error_code)

    @staticmethod
    def _until_free(call: Any, code: Any) -> Any:
        for _ in range(400):
            answer = call()
            if code(answer) not in BUSY:
                break
            time.sleep(0.02)
        return answer

    def beat(self, name: str, instance: str | None, what: str, assignor: str | None = None) -> int:
        """One heartbeat: "join", "beat", "leave", "away", or an epoch that is off by so much."""
        member = self.members.setdefault(name, Member(name, instance))
        wrong = {"ahead": 1, "far ahead": 9, "behind": -3}
        epoch = {"join": 0, "beat": member.epoch, "leave": -1, "away": -2}.get(what, 0)
        if what in wrong:
            epoch = max(1, member.epoch + wrong[what])
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=name,
            member_epoch=epoch,
            instance_id=instance,
            topic_partitions=[TopicPartitions(topic_id=t, partitions=n) for t, n in member.owned.items()],
        )
        if epoch == 0:
            request.rebalance_timeout_ms = 60_000
            request.subscribed_topic_names = [TOPIC]
            request.server_assignor = assignor
            request.topic_partitions = []
            member.owned = {}
        answer = self._until_free(lambda: self.connection.ask(request, 1), lambda answer: answer.error_code)
        if answer.error_code in (FENCED, UNKNOWN) or (what in ("leave", "away") and not answer.error_code):
            member.epoch, member.owned, member.present = 0, {}, False
        elif not answer.error_code:
            member.epoch, member.present = answer.member_epoch, True
            if answer.assignment is not None:
                member.owned = {t.topic_id: list(t.partitions) for t in answer.assignment.topic_partitions}
        return int(answer.error_code)

    def commit(self, name: str, off: int) -> int:
        member = self.members.setdefault(name, Member(name, None))
        partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
        request = offset_commit.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=member.epoch + off,
            member_id=name,
            topics=[offset_commit.OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
        )
        return int(self.connection.ask(request, 9).topics[0].partitions[0].error_code)

    def rest(self) -> Any:
        """Let those go who were sent away, let the others settle, and say how things stand."""
        for member in self.members.values():
            if not member.present:
                self.beat(member.member_id, member.instance_id, "leave")
        for _ in range(12):
            for member in self.members.values():
                if member.present:
                    self.beat(member.member_id, member.instance_id, "beat")
        request = consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=[self.group])
        group = self.connection.ask(request, 1).groups[0]
        shares = sorted(
            (
                m.member_id,
                m.member_epoch == group.group_epoch,
                sum(len(t.partitions) for t in m.assignment.topic_partitions),
            )
            for m in group.members
        )
        return group.error_code, group.group_state, group.assignor_name, shares


@pytest.fixture(scope="module")
def both(java: JavaClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Answerer, Answerer]]:
    brokers = [KINDS[kind](tmp_path_factory.mktemp(kind), overrides=SETTINGS) for kind in ("kafka", "klamm")]
    answerers = []
    try:
        for broker in brokers:
            broker.start()
            java.create(broker.bootstrap, TOPIC, PARTITIONS)
            answerers.append(Answerer(broker.port))
        yield answerers[0], answerers[1]
    finally:
        for answerer in answerers:
            answerer.connection.close()
        for broker in brokers:
            broker.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_heartbeats_get_the_same_answers(both: tuple[Answerer, Answerer], seed: int) -> None:
    chance = random.Random(seed)
    for answerer in both:
        answerer.begin(f"beside-{seed}")
    kafka, klamm = both
    names: dict[str, str | None] = {}
    steps = []
    for _ in range(STEPS):
        present = [name for name, member in klamm.members.items() if member.present]
        draw = chance.random()
        if not names or (draw < 0.2 and len(present) < MEMBERS_MAX):
            name = f"m{len(names)}"
            names[name] = f"i{chance.randrange(3)}" if chance.random() < 0.4 else None
            question: tuple[Any, ...] = (name, names[name], "join", chance.choice([None, "uniform", "range", "none"]))
        elif draw < 0.85:
            name = chance.choice(present or list(names))
            what = chance.choices(["beat", "leave", "away", "ahead", "far ahead", "behind"], [60, 8, 8, 3, 3, 6])[0]
            if what == "beat" and not klamm.members[name].present:
                continue  # it would join again under its own id
            if what == "behind" and klamm.members[name].epoch <= 3:
                continue
            question = (name, names[name], what)
        else:
            name = chance.choice(list(names))
            question = (name, chance.choice([0, 1, 5]) if klamm.members[name].present else 500)
        answers = [side.commit(*question) if len(question) == 2 else side.beat(*question) for side in both]
        steps.append((question, answers))
        assert answers[0] == answers[1], f"{question}: Kafka says {answers[0]}, Klamm {answers[1]}\n{steps[-8:]}"
    rests = kafka.rest(), klamm.rest()
    assert rests[0] == rests[1], f"{rests}\n{steps[-8:]}"
