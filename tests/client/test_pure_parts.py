"""The small pure parts: frames, sessions, readable batches, metadata, transactions' states."""

from types import SimpleNamespace as N

import pytest

from klamm.client.backoff import Backoff
from klamm.client.consumer.core.sessions import ConsumerFetchSession, PartitionFetch
from klamm.client.consumer.core.subscription import Mode, Subscription
from klamm.client.core.batches import readable
from klamm.client.core.metadata import ClusterTable
from klamm.client.errors import (
    IllegalStateError,
    InvalidTransactionStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    RetriableError,
    SomeFailed,
    TransactionAbortableError,
    error_for,
    raise_failures,
)
from klamm.client.producer.core.transactions import Transactions, TransactionStatus
from klamm.model.errors import CorruptBatch, ErrorCode
from klamm.model.ids import TopicPartition
from klamm.records import build_batch
from klamm.records.control import build_end_txn_marker

S = TransactionStatus
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_session_says_what_changed():
    session = ConsumerFetchSession()
    first = {A: PartitionFetch(0, 1, b"id", 10), B: PartitionFetch(5, 1, b"id", 10)}
    assert session.build(first) == (first, {})
    session.on_response(77)
    assert (session.session_id, session.epoch) == (77, 1)
    moved = {A: PartitionFetch(3, 1, b"id", 10), B: PartitionFetch(5, 1, b"id", 10)}
    assert session.build(moved) == ({A: moved[A]}, {})
    session.on_response(77)
    assert session.build({A: moved[A]}) == ({}, {B: moved[B]})
    session.on_response(77)
    assert session.epoch == 3
    session.reset()
    assert session.build(moved) == (moved, {})
    session.epoch = 0x7FFFFFFF
    session.on_response(77)
    assert session.epoch == 1


def data(values, base, **options):
    return bytes(build_batch([(1, None, value, ()) for value in values], base_offset=base, **options))


def marker(base, *, committed, producer_id):
    return bytes(
        build_end_txn_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=1,
            base_offset=base,
        )
    )


def test_readers_of_committed_records_see_no_aborted_ones():
    txn = {"transactional": True, "producer_epoch": 0, "base_sequence": 0}
    log = (
        data([b"a0"], 0, producer_id=7, **txn)
        + data([b"b1"], 1, producer_id=8, **txn)
        + marker(2, committed=False, producer_id=7)
        + data([b"a3"], 3, producer_id=7, **txn)
        + marker(4, committed=True, producer_id=7)
        + marker(5, committed=True, producer_id=8)
        + data([b"plain"], 6)
    )

    def seen(start, aborted):
        batches, following = readable(log, start, aborted)
        return [record.value for batch in batches for record in batch.decode()], following

    assert seen(0, [(7, 0)]) == ([b"b1", b"a3", b"plain"], 7)
    assert seen(0, None) == ([b"a0", b"b1", b"a3", b"plain"], 7)
    assert seen(3, []) == ([b"a3", b"plain"], 7)
    assert readable(log[:-5], 0, None)[1] == 6
    with pytest.raises(CorruptBatch):
        readable(b"\0" * 100, 0, None)


def metadata(leader, epoch, topic_id=b"i" * 16):
    partition = N(
        partition_index=0,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=[1, 2],
        isr_nodes=[1, 2],
        offline_replicas=[],
        error_code=ErrorCode.NONE,
    )
    topic = N(name="t", topic_id=topic_id, is_internal=False, partitions=[partition], error_code=ErrorCode.NONE)
    brokers = [N(node_id=node_id, host="h", port=node_id, rack=None) for node_id in (1, 2)]
    return N(cluster_id="c", controller_id=1, brokers=brokers, topics=[topic])


def test_metadata_never_goes_back():
    table = ClusterTable()
    table.update(metadata(1, 5), ["t"])
    table.update(metadata(2, 4), ["t"])
    assert table.leader(A) == 1
    table.update(metadata(2, 6), ["t"])
    assert table.leader(A) == 2
    table.update(metadata(1, 0, b"j" * 16), ["t"])
    assert table.leader(A) == 1  # another topic of that name begins anew
    assert table.leader(B) == -1


def test_a_hint_is_believed_when_it_is_newer():
    table = ClusterTable()
    table.update(metadata(1, 5), ["t"])
    assert not table.hint(A, 2, 5, [])
    assert not table.hint(A, 9, 6, [])
    assert table.hint(A, 9, 6, [N(node_id=9, host="new", port=1, rack=None)])
    assert table.leader(A) == 9
    assert table.brokers[9].host == "new"


def test_one_way_of_subscribing_at_a_time():
    wants = Subscription()
    wants.subscribe("orders")
    assert wants.topics == {"orders"}
    with pytest.raises(IllegalStateError, match="unsubscribe"):
        wants.assign_manually([A])
    wants.unsubscribe()
    wants.assign_manually([A, B])
    wants.state(A).seek(5)
    wants.take([A])
    assert wants.state(A).position == 5
    with pytest.raises(IllegalStateError, match="t-1"):
        wants.state(B)
    assert wants.mode is Mode.PARTITIONS


def test_a_transaction_takes_its_course():
    state = Transactions("tx")
    with pytest.raises(InvalidTransactionStateError):
        state.move(S.READY)
    for step in (S.INITIALIZING, S.READY, S.IN_TRANSACTION):
        state.move(step)
    assert state.may_write(A)
    assert state.touched
    state.fail(KafkaTimeoutError("late"))
    assert state.status is S.ABORTABLE_ERROR
    assert not state.may_write(A)
    with pytest.raises(TransactionAbortableError, match="late"):
        state.require(S.IN_TRANSACTION)
    state.require(S.IN_TRANSACTION, S.ABORTABLE_ERROR)
    state.move(S.ABORTING)
    state.move(S.READY)
    assert not state.touched
    state.move(S.IN_TRANSACTION)
    state.fail(ProducerFencedError(ErrorCode.PRODUCER_FENCED, "gone"))
    with pytest.raises(ProducerFencedError):
        state.require(S.IN_TRANSACTION)


def test_partitions_are_announced_before_version_two():
    state = Transactions("tx")
    state.implicit = False
    for step in (S.INITIALIZING, S.READY, S.IN_TRANSACTION):
        state.move(step)
    assert not state.may_write(A)
    assert not state.touched
    state.add_partitions(frozenset({A}))
    assert state.may_write(A)
    assert state.touched


def test_errors_are_of_their_kind():
    assert isinstance(error_for(ErrorCode.PRODUCER_FENCED), ProducerFencedError)
    assert isinstance(error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER), RetriableError)
    assert error_for(ErrorCode.REQUEST_TIMED_OUT).retriable
    assert isinstance(error_for(ErrorCode.REQUEST_TIMED_OUT), TimeoutError)
    assert error_for(12345).code is ErrorCode.UNKNOWN_SERVER_ERROR
    one = error_for(ErrorCode.TOPIC_ALREADY_EXISTS, "t")
    with pytest.raises(type(one)):
        raise_failures({"t": one}, {})
    with pytest.raises(SomeFailed) as failed:
        raise_failures({"t": one}, {"u": 1})
    assert (failed.value.failures, failed.value.results) == ({"t": one}, {"u": 1})
    assert isinstance(failed.value, KafkaError)


def test_backoff_doubles_to_a_limit():
    waits = Backoff(0.1, 0.5)
    pauses = [waits.next() for _ in range(5)]
    assert 0.08 <= pauses[0] <= 0.12
    assert pauses[1] > pauses[0]
    assert max(pauses) <= 0.6
    waits.reset()
    assert waits.next() <= 0.12
