"""The defects that others' clusters were offsets to have, each as a test by the name it is known by.

Most are stories on simulated machines with the real code of three nodes (`scenes`): the accident happens at the very
event it needs. That a story can fail is part of it: told again with the defect planted into the code, it must end in a
violation. The others are told to a real process over the wire.
"""

import pytest

from cluster.scenes import Scene
from harness import KlammProcess, Wire, batch, rows, unique
from harness.wire import produce_fields
from klamm.model.errors import ErrorCode
from klamm.storage import segment_scan
from simulation.bugs import plant

pytestmark = pytest.mark.timeout(300)
SEEDS = range(1, 9)
"""With a defect planted, one of these must show it: chance decides what a power loss takes."""

BUSY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
"""Codes after which a request to a coordinator is repeated."""


def judge(story, bug=None, **scene):
    """Nothing is violated; or with a planted bug, something is."""
    if bug is None:
        assert Scene(**scene).play(story) is None
    else:
        with plant(bug):
            assert any(Scene(seed, **scene).play(story) for seed in SEEDS)


# Kafka 0.8, Jepsen 2013: the leader is in sync alone, acknowledges, dies; one who lacks its records is elected.


@pytest.mark.parametrize("bug", [None, "elect a leader that is not in sync"])
def test_kafka_0_8_no_replica_leads_that_lacks_acknowledged_records(bug):
    def story(scene):
        leader, (follower,) = scene.image().leader, scene.followers()
        scene.kill(follower)
        scene.until(lambda: scene.image().isr == (leader,), "the leader is in sync alone")
        scene.until_acknowledged(10)
        scene.kill(leader)
        scene.restart_and_wait(follower)
        scene.rest(10)
        assert scene.image().leader == -1

    judge(story, bug, factor=2, min_insync=1)


@pytest.mark.parametrize("bug", [None, "ignore min.insync.replicas"])
def test_kafka_0_8_a_leader_that_is_alone_acknowledges_nothing(bug):
    def story(scene):
        leader, (follower,) = scene.image().leader, scene.followers()
        scene.kill(follower)
        scene.until(lambda: scene.image().isr == (leader,), "the leader is in sync alone")
        before = scene.acks
        scene.rest(10)
        if scene.acks > before:
            scene.violate("acknowledged by the leader alone")

    judge(story, bug, factor=2, min_insync=2)


# KIP-101: a follower that cuts its log to its high watermark, which lags, and becomes leader before it has it again.


@pytest.mark.parametrize("bug", [None, "truncate to the high watermark"])
def test_kip_101_two_fast_elections_cut_nothing_that_was_acknowledged(bug):
    def story(scene):
        leader, followers = scene.image().leader, scene.followers()

        def behind() -> bool:
            """Every replica has it, it is committed, and followers do not have the new high watermark."""
            committed = scene.replica(leader).state.high_watermark
            logs = [scene.replica(node).log for node in followers]
            return all(log.high_watermark < committed <= log.log_end_offset for log in logs)

        scene.until(behind, "followers do not know how much is committed")
        scene.kill(leader)
        scene.until(lambda: any(scene.replica(node).leads for node in followers), "another leads")
        second = next(node for node in followers if scene.replica(node).leads)
        (third,) = (node for node in followers if node != second)
        scene.until(lambda: scene.replica(third).state.leader == second, "the third follows it")
        scene.kill(second)
        scene.restart_and_wait(leader)
        scene.until(lambda: scene.image().leader not in (second, -1), "a leader is elected")
        scene.until_acknowledged(10)

    judge(story, bug)


# KIP-279: histories that part in an epoch the new leader has never heard of.


@pytest.mark.parametrize("bug", [None, "never compare histories"])
def test_kip_279_an_epoch_the_leader_never_knew_is_cut(bug):
    def story(scene):
        first, followers = scene.image().leader, scene.followers()
        scene.kill(first)
        scene.until(lambda: any(scene.replica(node).leads for node in followers), "another leads")
        lonely = next(node for node in followers if scene.replica(node).leads)
        heal = scene.hurt("isolate", lonely)
        epoch = scene.replica(lonely).leader_epoch
        scene.until(lambda: scene.replica(lonely).log.leader_epochs.latest == epoch, "it has written something alone")
        scene.restart_and_wait(first)
        scene.until(lambda: scene.image().leader not in (lonely, -1), "the others have a leader")
        scene.until_acknowledged(10)
        new = scene.replica(scene.image().leader).log
        assert epoch not in [known for known, _ in new.leader_epochs.entries()]
        heal()
        scene.until(lambda: len(scene.image().isr) == 3, "all are in sync")

    judge(story, bug)


# KIP-966: the last replica in sync loses what it had not synced, and leads on with what is left.


@pytest.mark.parametrize("bug", [None, "keep a broker in sync that has lost its log"])
def test_kip_966_the_last_one_in_sync_loses_power_and_nothing_is_lost(bug):
    def story(scene):
        leader, (follower,) = scene.image().leader, scene.followers()
        scene.hurt("stop", follower)
        scene.until(lambda: not scene.cluster.machines[follower].running, "the follower has stopped")
        scene.until(lambda: scene.image().isr == (leader,), "the leader is in sync alone")
        scene.hurt("power", leader)
        scene.restart_and_wait(leader)
        scene.rest(10)
        scene.restart_and_wait(follower)
        scene.until_acknowledged(10)

    judge(story, bug, factor=2, min_insync=2)


# Redpanda 21.10.1, Jepsen 2022: duplicates, inconsistent offsets and aborted reads after pauses and kills.


@pytest.mark.parametrize(
    "bug",
    [None, "forget sequence numbers", "show aborted transactions", "acknowledge before the others in sync have it"],
)
def test_redpanda_21_10_pauses_and_kills_make_no_duplicate_no_other_offset_no_aborted_read(bug):
    def story(scene):
        for _ in range(2):
            leader = scene.image().leader
            go_on = scene.hurt("pause", leader)
            scene.until(lambda leader=leader: scene.image().leader not in (leader, -1), "another leads")
            scene.until_acknowledged(5)
            go_on()
            scene.rest(0.05)
            scene.kill(leader)
            scene.until_acknowledged(5)
            scene.restart_and_wait(leader)
            scene.until(lambda: len(scene.image().isr) == 3, "all are in sync")

    judge(story, bug, producers=2, consumers=2, transactional=2)


# Bufstream 0.1.0, Jepsen 2024: stuck clients and lost writes in a cluster nothing had happened to; zero offsets.


@pytest.mark.parametrize("bug", [None, "drop a control batch"])
def test_bufstream_0_1_a_healthy_cluster_loses_nothing_and_no_client_is_stuck(bug):
    judge(lambda scene: scene.rest(5), bug, producers=2, consumers=2, transactional=2, members=2)


def test_bufstream_0_1_no_error_is_told_as_offset_0(wire):
    topic, gone = wire.create_topic(), unique("gone")
    wire.produce(topic, batch(b"a", b"b", b"c"))
    refused = wire.produce(topic, batch(b"x")[:-1])
    assert (refused.error_code, refused.base_offset) == (2, -1)
    assert wire.produce(gone, batch(b"x"), version=9).base_offset == -1
    for name, partition in ((gone, 0), (topic, 7)):
        requested = {
            "name": name,
            "partitions": [{"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}],
        }
        part = (
            wire.call("list_offsets", 7, replica_id=-1, isolation_level=0, topics=[requested]).topics[0].partitions[0]
        )
        assert part.error_code != 0
        assert (part.offset, int(part.timestamp)) == (-1, -1)
    later = wire.list_offset(topic, 2**60)
    assert (later.error_code, later.offset) == (0, -1), "nothing is that young"
    fetched = wire.fetch(topic, 99)
    assert (fetched.error_code, fetched.high_watermark) == (1, -1)


# NATS 2.12.1, Jepsen 2025: acknowledged before it was durable; damage on one node spreads to all.


@pytest.mark.parametrize("bug", [None, "acknowledge before the sync"])
def test_nats_2_12_what_is_synced_before_it_is_acknowledged_survives_a_power_loss_of_all(bug):
    def story(scene):
        for _ in range(2):
            scene.hurt("power", 1, 2, 3)()
            scene.until_acknowledged(20)

    judge(story, bug, flush=True)


@pytest.mark.parametrize(
    ("damage", "checksums"), [("a flipped bit", True), ("a flipped bit", False), ("a cut file", True)]
)
def test_nats_2_12_damage_on_one_node_is_made_good_by_the_others(damage, checksums, monkeypatch):
    """The segment is damaged while its node is down; recovery must notice, and only that copy may get shorter."""
    monkeypatch.setattr(segment_scan, "CHECKSUMS", checksums)

    def story(scene):
        victim = scene.followers()[0]
        scene.kill(victim)
        scene.until(lambda: victim not in scene.image().isr, "it is not in sync any more")
        (file,) = (file for path, file in scene.cluster.machines[victim].image.names.items() if _is_segment(path))
        if damage == "a cut file":
            del file.data[len(file.data) // 2 :]
        else:
            file.data[-2] ^= 1
        scene.restart_and_wait(victim)
        scene.until(lambda: victim in scene.image().isr, "it is in sync again")

    outcome = Scene().play(story)
    assert (outcome is None) == checksums


def _is_segment(path: str) -> bool:
    return "/t-0/" in path and path.endswith(".log")


# Redpanda's own list: coordinators that only remember, offsets after an abort, epochs from the future.


def test_redpanda_coordinators_lose_nothing_when_any_node_dies():
    def story(scene):
        for node in (1, 2, 3):
            scene.kill(node)
            scene.until_acknowledged(10)
            scene.restart_and_wait(node)
            scene.until(lambda: len(scene.image().isr) == 3, "all are in sync")

    judge(story, producers=1, consumers=2, transactional=2, members=2)


class Transactional:
    """A transactional producer spoken by hand, of the protocol's version 2."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.name = unique("txn")
        self._retry_busy(
            lambda: wire.call("find_coordinator", 4, coordinator_keys=[self.name], key_type=1),
            lambda reply: reply.coordinators[0].error_code,
        )
        made = self._retry_busy(
            lambda: wire.call("init_producer_id", 5, transactional_id=self.name, transaction_timeout=60_000)
        )
        self.id, self.epoch = int(made.producer_id), int(made.producer_epoch)

    @staticmethod
    def _retry_busy(call, code=lambda reply: reply.error_code):
        """Ask again while the coordinator is being made, loaded or busy."""
        for _ in range(2000):
            reply = call()
            if code(reply) not in BUSY:
                break
        assert code(reply) == 0, reply
        return reply

    def send(self, topic: str, *values: bytes, epoch: int | None = None, sequence: int = 0) -> tuple[int, int]:
        """(error, offset) of one batch."""
        chosen = self.epoch if epoch is None else epoch
        records = batch(*values, producer_id=self.id, producer_epoch=chosen, base_sequence=sequence, transactional=True)
        reply = self.wire.call("produce", 12, **produce_fields(topic, records), transactional_id=self.name)
        part = reply.responses[0].partition_responses[0]
        return int(part.error_code), part.base_offset

    def end(self, *, commit: bool, epoch: int | None = None) -> int:
        """Commit or abort; the error. Under its own epoch, it goes on with the next."""
        reply = self.wire.call(
            "end_txn", 5, transactional_id=self.name, producer_id=self.id, committed=commit,
            producer_epoch=self.epoch if epoch is None else epoch,
        )  # fmt: skip
        if reply.error_code == 0 and epoch is None:
            self.epoch = int(reply.producer_epoch)
        return int(reply.error_code)


def stable(wire: Wire, topic: str) -> tuple[int, int]:
    """(last stable offset, high watermark)."""
    part = wire.fetch(topic, 0, isolation_level=1)
    return part.last_stable_offset, part.high_watermark


def wait_until_stable(wire: Wire, topic: str, *ends: int) -> None:
    """Return once nothing is open and the log ends there: markers are written behind the answer to EndTxn."""
    for _ in range(2000):
        offsets = stable(wire, topic)
        if offsets in [(end, end) for end in ends]:
            return
    pytest.fail(f"{topic} is stable up to {offsets[0]} and ends at {offsets[1]} instead of {ends}")


def test_redpanda_an_abort_takes_the_offset_it_takes_in_kafka_and_readers_reach_the_end_after_a_restart(tmp_path):
    with KlammProcess(tmp_path) as process:
        with Wire(process.port) as wire:
            topic = wire.create_topic()
            producer = Transactional(wire)
            assert producer.send(topic, b"a", b"b") == (0, 0)
            assert producer.end(commit=False) == 0
            wait_until_stable(wire, topic, 3)
            assert producer.send(topic, b"c") == (0, 3)
            assert producer.end(commit=True) == 0
            wait_until_stable(wire, topic, 5)
        process.restart(clean=False)
        with Wire(process.port) as wire:
            wait_until_stable(wire, topic, 5, 6)  # a marker is written again when its response was lost
            part = wire.fetch(topic, 0, isolation_level=1)
            assert [(txn.producer_id.real, txn.first_offset) for txn in part.aborted_transactions] == [(producer.id, 0)]
            data = [row.value for row in rows(part.records + wire.fetch(topic, 2, isolation_level=1).records)]
            assert [value for value in data if len(value) == 1] == [b"a", b"b", b"c"], "markers lie between them"
            epoch = wire.list_offset(topic, -1).leader_epoch
            requested = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch + 3}
            reply = wire.call("offset_for_leader_epoch", 4, topics=[{"topic": topic, "partitions": [requested]}])
            answer = reply.topics[0].partitions[0]
            assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, -1, -1), (
                "an epoch from the future"
            )


# KAFKA-14402 and KIP-890: a delayed request lands in the next transaction, or opens one that nothing ends.


def test_kip_890_what_comes_late_joins_no_later_transaction_and_opens_none(wire):
    topic, other = wire.create_topic(), wire.create_topic()
    producer = Transactional(wire)
    old = producer.epoch
    assert producer.send(topic, b"one") == (0, 0)
    assert producer.end(commit=True) == 0
    wait_until_stable(wire, topic, 2)
    assert producer.epoch == old + 1
    late = [producer.send(place, b"late", epoch=old, sequence=1)[0] for place in (topic, other)]
    assert set(late) <= {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }, "fenced, or not part of anything"
    assert stable(wire, topic) == (2, 2)
    assert stable(wire, other) == (0, 0), "no transaction hangs"
    assert producer.send(topic, b"two") == (0, 2)
    assert producer.end(commit=False, epoch=old) != 0, "a late EndTxn does not end the next one"
    assert producer.send(topic, b"three", sequence=1) == (0, 3)
    assert producer.end(commit=True) == 0
    wait_until_stable(wire, topic, 5)
    part = wire.fetch(topic, 0, isolation_level=1)
    assert not part.aborted_transactions


# CVE-2026-35554: a buffer used again while it is being sent; bytes of one topic turn up in another.


def test_cve_2026_35554_bytes_of_one_topic_never_turn_up_in_another(klamm):
    """Many requests in one write, so that they share a buffer of the connection; some are refused among them."""
    with Wire(klamm.port) as wire:
        topics = [wire.create_topic() for _ in range(8)]
        expected: dict[str, list[bytes]] = {topic: [] for topic in topics}
        sent = []
        for number in range(400):
            topic = topics[number * 7 % len(topics)]
            value = f"{topic}:{number}:".encode() * (1 + number * 13 % 50)
            refused = number % 11 == 5
            records = batch(value)
            sent.append(
                (wire.send("produce", 9, **produce_fields(topic, records[:-1] if refused else records)), refused)
            )
            if not refused:
                expected[topic].append(value)
        for correlation_id, refused in sent:
            part = wire.receive("produce", 9, correlation_id).responses[0].partition_responses[0]
            assert (part.error_code != 0) == refused
        for topic in topics:
            assert wire.values(topic) == expected[topic]
