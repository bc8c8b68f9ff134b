"""Whole transactions: begin, write, end, and requests that come too late."""

import pytest

from klamm.coordinator.transactions import TransactionConfig
from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
from klamm.coordinator.transactions.state import EPOCH_MAX
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition

from .transactions_world import World, guard_key

A, B = TopicPartition("orders", 0), TopicPartition("bills", 3)
BOTH = pytest.mark.parametrize("version", [0, 2])


def transaction(world: World, name: str, producer: ProducerIdAndEpoch, values: list[str], sequence: int = 0) -> None:
    """Write one value after the other to A and to B."""
    if world.version < 2:
        assert world.add(name, producer, A, B).code == ErrorCode.NONE
    for i, value in enumerate(values):
        for partition in (A, B):
            assert world.produce(name, producer, partition, sequence + i, value) == ErrorCode.NONE


@BOTH
def test_a_committed_transaction_is_seen_whole_and_only_at_its_end(version):
    world = World(version)
    producer = world.begin("shop")
    assert (producer.epoch, world.state("shop")) == (0, "Empty")

    transaction(world, "shop", producer, ["tea", "salt"])
    assert world.state("shop") == "Ongoing"
    assert world.partition(A).read_committed() == []

    ended = world.end("shop", producer, committed=True)
    assert ended.value == ProducerIdAndEpoch(producer.id, 1 if version == 2 else 0)
    assert world.state("shop") == "PrepareCommit"
    assert world.partition(A).read_committed() == [], "decided, but the partition does not know yet"

    world.pay()
    assert world.state("shop") == "CompleteCommit"
    assert world.partition(A).read_committed() == world.partition(B).read_committed() == ["tea", "salt"]


@BOTH
def test_an_aborted_transaction_is_never_seen_and_the_next_one_is(version):
    world = World(version)
    producer = world.begin("shop")
    transaction(world, "shop", producer, ["wrong"])
    producer = world.end("shop", producer, committed=False).value
    world.pay()
    assert world.state("shop") == "CompleteAbort"

    transaction(world, "shop", producer, ["right"], sequence=0 if version == 2 else 1)
    world.end("shop", producer, committed=True)
    world.pay()
    assert world.partition(A).read_committed() == ["right"]


@BOTH
def test_the_end_may_be_asked_for_again_but_not_for_the_opposite(version):
    world = World(version)
    producer = world.begin("shop")
    transaction(world, "shop", producer, ["tea"])
    first = world.end("shop", producer, committed=True)
    assert world.end("shop", producer, committed=True).code == ErrorCode.CONCURRENT_TRANSACTIONS
    # Version 2 refuses every end that is requested meanwhile, as Kafka does.
    opposite = ErrorCode.CONCURRENT_TRANSACTIONS if version == 2 else ErrorCode.INVALID_TXN_STATE
    assert world.end("shop", producer, committed=False).code == opposite
    world.pay()
    again = world.end("shop", producer, committed=True)
    assert again.value == first.value, "the same answer as the first time"
    assert world.end("shop", producer, committed=False).code == ErrorCode.INVALID_TXN_STATE


@BOTH
def test_whoever_takes_the_id_over_ends_what_was_open_and_fences_the_zombie(version):
    world = World(version)
    zombie = world.begin("shop")
    transaction(world, "shop", zombie, ["half"])

    taken = world.init("shop")
    assert taken.code == ErrorCode.CONCURRENT_TRANSACTIONS, "the open transaction is aborted first"
    assert world.state("shop") == "PrepareAbort"
    world.pay()
    heir = world.begin("shop")
    assert heir.id == zombie.id
    assert heir.epoch > zombie.epoch

    assert world.produce("shop", zombie, A, 1, "late") in (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
    )
    assert world.end("shop", zombie, committed=True).code == ErrorCode.PRODUCER_FENCED
    assert world.add("shop", zombie, A).code == ErrorCode.PRODUCER_FENCED
    transaction(world, "shop", heir, ["whole"])
    world.end("shop", heir, committed=True)
    world.pay()
    assert world.partition(A).read_committed() == ["whole"]


@BOTH
def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(version):
    world = World(version)
    slow = world.begin("shop", timeout_ms=15_000)
    transaction(world, "shop", slow, ["slow"])
    world.tick(10_000)
    assert world.state("shop") == "Ongoing"
    world.tick(10_000)
    assert world.state("shop") == "PrepareAbort"
    world.pay()
    assert world.end("shop", slow, committed=True).code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE)
    assert world.partition(A).read_committed() == []
    assert world.partition(A).last_stable_offset == len(world.partition(A).entries)


def test_in_version_2_an_old_batch_cannot_slip_into_the_next_transaction():
    world = World(2)
    producer = world.begin("shop")
    transaction(world, "shop", producer, ["one"])
    following = world.end("shop", producer, committed=False).value
    world.pay()
    assert world.produce("shop", producer, A, 1, "late") == ErrorCode.PRODUCER_FENCED
    transaction(world, "shop", following, ["two"])
    world.end("shop", following, committed=True)
    world.pay()
    assert world.partition(A).read_committed() == ["two"]


def test_in_version_1_a_batch_outside_the_transaction_is_refused():
    world = World(0)
    producer = world.begin("shop")
    assert world.produce("shop", producer, A, 0, "early") == ErrorCode.TRANSACTION_ABORTABLE
    transaction(world, "shop", producer, ["one"])
    world.end("shop", producer, committed=False)
    assert world.produce("shop", producer, TopicPartition("other", 0), 0, "x") == ErrorCode.CONCURRENT_TRANSACTIONS
    world.pay()
    assert world.produce("shop", producer, A, 1, "late") == ErrorCode.TRANSACTION_ABORTABLE


def test_a_marker_between_the_question_and_the_write_makes_the_answer_worthless():
    world = World(0)
    producer = world.begin("shop")
    world.add("shop", producer, A)
    partition = world.partition(A)
    guard = partition.guards.take(guard_key(producer.id), producer, 0, 0)
    assert world.verify("shop", producer, A).value == {A: ErrorCode.NONE}
    world.end("shop", producer, committed=False)
    world.pay()
    assert not partition.guards.holds(guard_key(producer.id), guard)


def test_the_markers_of_the_transaction_before_leave_the_next_question_alone():
    """Version 2 gives each transaction its epoch, and the markers of the one before carry the epoch of the next."""
    world = World(2)
    producer = world.begin("shop")
    transaction(world, "shop", producer, ["one"])
    following = world.end("shop", producer, committed=True).value
    partition = world.partition(A)
    guard = partition.guards.take(guard_key(following.id), following, 0, 0)
    assert world.add("shop", following, A).code == ErrorCode.CONCURRENT_TRANSACTIONS
    world.pay()
    assert world.add("shop", following, A).code == ErrorCode.NONE
    assert partition.guards.holds(guard_key(following.id), guard)
    world.end("shop", following, committed=False)
    world.pay()
    assert not partition.guards.holds(guard_key(following.id), guard)


def test_version_2_may_abort_what_it_never_began():
    world = World(2)
    producer = world.begin("shop")
    ended = world.end("shop", producer, committed=False)
    assert ended.value == ProducerIdAndEpoch(producer.id, 1)
    world.pay()
    assert world.state("shop") == "CompleteAbort"
    assert world.end("shop", ended.value, committed=True).code == ErrorCode.INVALID_TXN_STATE
    assert World(0).end("unknown", producer, committed=False).code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_the_abort_of_an_empty_transaction_waits_until_the_last_one_is_complete():
    """A producer that gives up its next transaction before a record was sent aborts it at once, while markers
    of the last one are being written: it is early, and not fenced (Spring's listeners that throw).

    Other tests either pay all markers before the next transaction ends, or write to it first, and that write waits.
    """
    world = World(2)
    producer = world.begin("shop")
    transaction(world, "shop", producer, ["tea"])
    following = world.end("shop", producer, committed=True).value
    assert world.state("shop") == "PrepareCommit"
    assert world.end("shop", following, committed=False).code == ErrorCode.CONCURRENT_TRANSACTIONS
    world.pay()
    ended = world.end("shop", following, committed=False)
    assert ended.value == ProducerIdAndEpoch(producer.id, 2)
    world.pay()
    assert world.state("shop") == "CompleteAbort"
    assert world.partition(A).read_committed() == ["tea"]


def test_version_1_cannot_end_what_it_never_began():
    world = World(0)
    producer = world.begin("shop")
    assert world.end("shop", producer, committed=False).code == ErrorCode.INVALID_TXN_STATE


def test_a_producer_may_bump_its_own_epoch_and_ask_twice():
    world = World(0)
    producer = world.begin("shop")
    bumped = world.init("shop", expected=producer).value
    assert bumped == ProducerIdAndEpoch(producer.id, 1)
    assert world.init("shop", expected=producer).value == bumped, "the first answer was lost"
    stranger = world.begin("shop")
    assert world.init("shop", expected=bumped).code == ErrorCode.PRODUCER_FENCED
    assert world.init("shop", expected=ProducerIdAndEpoch(7, 0)).code == ErrorCode.PRODUCER_FENCED
    assert world.init("shop", expected=stranger).code == ErrorCode.NONE


def test_epochs_end_and_a_new_producer_id_goes_on():
    world = World(2)
    producer = world.begin_at("shop", EPOCH_MAX - 1)
    transaction(world, "shop", producer, ["last"])
    following = world.end("shop", producer, committed=True).value
    assert following.id != producer.id
    assert following.epoch == 0
    world.pay()
    assert world.end("shop", producer, committed=True).value == following, "the answer was lost: the same again"
    assert world.partition(A).read_committed() == ["last"]
    transaction(world, "shop", following, ["first"])
    world.end("shop", following, committed=True)
    world.pay()
    assert world.partition(A).read_committed() == ["last", "first"]


def test_the_next_producer_id_waits_until_the_last_transaction_is_complete():
    """A producer that continues at once, under the id it was just given, is early and not unknown.

    Other tests pay all markers before they go on, and see the new id only when it is in place.
    """
    world = World(2)
    producer = world.begin_at("shop", EPOCH_MAX - 1)
    transaction(world, "shop", producer, ["last"])
    following = world.end("shop", producer, committed=True).value
    assert world.add("shop", following, A).code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.end("shop", following, committed=False).code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.init("shop", expected=following).code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.add("shop", ProducerIdAndEpoch(following.id + 1, 0), A).code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    world.pay()
    assert world.add("shop", following, A).code == ErrorCode.NONE


def test_epochs_end_in_version_1_when_a_producer_begins_again():
    world = World(0)
    producer = world.begin_at("shop", EPOCH_MAX - 1)
    rotated = world.init("shop", expected=producer).value
    assert rotated.id != producer.id
    assert rotated.epoch == 0
    assert world.init("shop", expected=producer).value == rotated, "a retry of the last bump"


def test_an_open_transaction_at_the_last_epoch_can_still_be_taken_over():
    for version in (0, 2):
        world = World(version)
        producer = world.begin_at("shop", EPOCH_MAX - 1)
        transaction(world, "shop", producer, ["open"])
        heir = world.begin("shop")
        assert heir.id != producer.id
        assert world.end("shop", producer, committed=True).code != ErrorCode.NONE
        assert world.partition(A).read_committed() == []
        assert world.partition(A).last_stable_offset == len(world.partition(A).entries)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_outside_the_limits_is_refused(timeout_ms):
    assert World().init("shop", timeout_ms=timeout_ms).code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_idle_ids_are_forgotten_and_busy_ones_are_not():
    world = World(config=TransactionConfig(transactional_id_expiration_ms=60_000))
    idle, busy = world.begin("idle"), world.begin("busy", timeout_ms=900_000)
    transaction(world, "busy", busy, ["x"])
    world.tick(60_000)
    assert world.state("idle") == "none"
    assert world.state("busy") == "Ongoing"
    assert world.add("idle", idle, A).code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.begin("idle").id != idle.id


@BOTH
def test_every_crash_between_two_records_is_survived(version):
    """Crash after each record of a whole transaction, go on as the client would, and compare what readers see."""
    for cut in range(8):
        world = World(version)
        producer = world.begin("shop")
        steps = 0

        def maybe_crash(world=world, cut=cut):
            nonlocal steps
            if steps == cut:
                world.crash()
            steps += 1

        maybe_crash()
        if version < 2:
            world.add("shop", producer, A)
        assert world.produce("shop", producer, A, 0, "tea") == ErrorCode.NONE
        maybe_crash()
        if version < 2:
            world.add("shop", producer, B)
        assert world.produce("shop", producer, B, 0, "tea") == ErrorCode.NONE
        maybe_crash()
        ended = world.end("shop", producer, committed=True)
        maybe_crash()
        for markers in world.tracker:
            for name in sorted(markers.partitions):
                world.write_markers(markers, name)
                maybe_crash()
        world.pay()
        maybe_crash()
        assert ended.code == ErrorCode.NONE
        assert world.state("shop") == "CompleteCommit", f"crash at step {cut}"
        assert world.partition(A).read_committed() == world.partition(B).read_committed() == ["tea"]


def test_a_decision_that_was_not_committed_never_happened():
    world = World(2)
    producer = world.begin("shop")
    transaction(world, "shop", producer, ["tea"])
    world.commit_at_once = False
    ended = world.end("shop", producer, committed=True)
    assert ended.code is None, "no response before the decision is committed"
    assert len(world.tracker) == 0, "and no partition hears of it"
    world.commit_at_once = True
    world.crash()
    assert world.state("shop") == "Ongoing"
    assert world.end("shop", producer, committed=False).code == ErrorCode.NONE
    world.pay()
    assert world.partition(A).read_committed() == []


def test_markers_of_an_older_coordinator_are_refused_by_the_partition():
    world = World(0)
    producer = world.begin("shop")
    transaction(world, "shop", producer, ["tea"])
    world.end("shop", producer, committed=True)
    old = next(iter(world.tracker))
    world.crash()
    world.pay()
    assert world.partition(A).write_marker(old) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
