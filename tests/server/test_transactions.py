"""Transactions over the raw wire: versions 1 and 2 of the protocol, verification, markers, what tools ask."""

import re

import pytest

from harness import KlammProcess, Wire
from harness.wire import batch, produce_fields, request_bytes, rows, unique
from klamm.model.errors import ErrorCode, KlammError
from klamm.records.batch import iter_batches
from klamm.testing import broker

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
NOT_READY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
READ_COMMITTED = 1


@pytest.fixture(scope="module")
def old_cluster(tmp_path_factory):
    """A node whose cluster has transaction.version 0: what clients know of version 2 they do not use, but may try."""
    with KlammProcess(tmp_path_factory.mktemp("old")) as process:
        with Wire(process.port) as wire:
            update = {"feature": "transaction.version", "max_version_level": 0, "upgrade_type": 2}
            reply = wire.call("update_features", 1, timeout=10_000, feature_updates=[update])
            assert reply.error_code == ErrorCode.NONE, reply
        yield process


@pytest.fixture(params=[2, 0], ids=["transaction.version=2", "transaction.version=0"])
def node(request, klamm):
    return klamm if request.param == 2 else request.getfixturevalue("old_cluster")


@pytest.fixture
def wire(node):
    with Wire(node.port) as connection:
        yield connection


class Producer:
    """A transactional producer spoken by hand. `version` 1 adds partitions itself, 2 lets the broker do it."""

    def __init__(self, wire: Wire, name: str | None = None, *, version: int = 2, timeout: int = 60_000) -> None:
        self.wire = wire
        self.name = name or unique("txn")
        self.version = version
        self.timeout = timeout
        self.id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    def init(self, **fields) -> "Producer":
        find(self.wire, self.name)
        reply = retried(
            lambda: self.wire.call(
                "init_producer_id", 5, transactional_id=self.name, transaction_timeout=self.timeout, **fields
            )
        )
        assert reply.error_code == ErrorCode.NONE, reply
        self.id, self.epoch = int(reply.producer_id), int(reply.producer_epoch)
        self.sequences.clear()
        return self

    def add(self, topic: str, *partitions: int, version: int = 3):
        reply = retried(
            lambda: self.wire.call(
                "add_partitions_to_txn",
                version,
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[{"name": topic, "partitions": list(partitions)}],
            ),
            lambda reply: reply.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        )
        return [
            int(p.partition_error_code) for t in reply.results_by_topic_v3_and_below for p in t.results_by_partition
        ]

    def send(self, topic: str, *values: bytes, partition: int = 0, version: int | None = None, sequence=None):
        """One transactional batch; the error code."""
        place = (topic, partition)
        first = self.sequences.get(place, 0) if sequence is None else sequence
        records = batch(
            *values, producer_id=self.id, producer_epoch=self.epoch, base_sequence=first, transactional=True
        )
        fields = {**produce_fields(topic, records, partition=partition), "transactional_id": self.name}
        reply = self.wire.call("produce", version or (12 if self.version == 2 else 9), **fields)
        part = reply.responses[0].partition_responses[0]
        if part.error_code == ErrorCode.NONE:
            self.sequences[place] = first + len(values)
        return int(part.error_code)

    def end(self, *, commit: bool):
        version = 5 if self.version == 2 else 4
        reply = self.wire.call(
            "end_txn",
            version,
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        if reply.error_code == ErrorCode.NONE and version >= 5:
            self.id, self.epoch = int(reply.producer_id), int(reply.producer_epoch)
            self.sequences.clear()
        return int(reply.error_code)


def find(wire: Wire, name: str) -> None:
    """Have the coordinator found, which creates its topic."""
    reply = retried(
        lambda: wire.call("find_coordinator", 4, coordinator_keys=[name], key_type=1),
        lambda reply: reply.coordinators[0].error_code,
        busy=(15, 14, 16),
    )
    assert reply.coordinators[0].error_code == ErrorCode.NONE, reply


def retried(
    call,
    code=lambda reply: reply.error_code,
    *,
    busy=(CONCURRENT, *NOT_READY),
):
    """Ask again while the answer says to."""
    for _ in range(500):
        reply = call()
        if code(reply) not in busy:
            break
    return reply


def committed(wire: Wire, topic: str, partition: int = 0) -> list[bytes]:
    """What a reader of committed data sees."""
    seen: list[bytes] = []
    offset = 0
    while True:
        part = wire.fetch(topic, offset, partition=partition, isolation_level=READ_COMMITTED)
        assert part.error_code == ErrorCode.NONE, part
        aborted = sorted((int(txn.first_offset), int(txn.producer_id)) for txn in part.aborted_transactions or ())
        hidden: set[int] = set()
        start = offset
        for view in iter_batches(part.records or b""):
            while aborted and aborted[0][0] <= view.last_offset:
                hidden.add(aborted.pop(0)[1])
            if view.is_control:
                hidden.discard(view.producer_id)
            elif not (view.is_transactional and view.producer_id in hidden):
                seen += [row.value for row in view.decode() if row.offset >= start and row.value is not None]
            offset = view.next_offset
        if offset == start:
            return seen


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def version(request):
    return request.param


def test_a_transaction_over_two_topics_is_seen_whole(wire, version):
    one, two = wire.create_topic(), wire.create_topic(partitions=3)
    producer = Producer(wire, version=version).init()
    if version == 1:
        assert producer.add(one, 0) == [0]
        assert producer.add(two, 1, 2) == [0, 0]
    assert producer.send(one, b"a", b"b") == 0
    assert producer.send(two, b"c", partition=2) == 0
    assert committed(wire, one) == []
    assert wire.list_offset(one, -1, isolation_level=READ_COMMITTED).offset == 0, "the last stable offset"
    assert producer.end(commit=True) == 0
    assert until(lambda: committed(wire, one), [b"a", b"b"])
    assert until(lambda: committed(wire, two, 2), [b"c"])
    assert until(lambda: int(wire.list_offset(one, -1, isolation_level=READ_COMMITTED).offset), 3)


def until(look, wanted, tries: int = 500) -> bool:
    """Look until it is so."""
    return any(look() == wanted for _ in range(tries))


def test_an_abort_hides_and_the_next_transaction_shows(wire, version):
    topic = wire.create_topic()
    producer = Producer(wire, version=version).init()
    for value, commit in [(b"no", False), (b"yes", True), (b"never", False), (b"again", True)]:
        if version == 1:
            assert producer.add(topic, 0) == [0]
        assert producer.send(topic, value) == 0
        assert producer.end(commit=commit) == 0
    assert until(lambda: committed(wire, topic), [b"yes", b"again"])
    plain = [row.value for offset in range(0, 8, 2) for row in rows(wire.fetch(topic, offset).records)]
    values = [b"no", b"yes", b"never", b"again"]
    assert list(dict.fromkeys(value for value in plain if value in values)) == values


def test_a_twin_fences_and_aborts(wire, version):
    topic = wire.create_topic()
    zombie = Producer(wire, version=version).init()
    if version == 1:
        zombie.add(topic, 0)
    assert zombie.send(topic, b"half") == 0
    heir = Producer(wire, zombie.name, version=version).init()
    assert heir.id == zombie.id
    assert heir.epoch > zombie.epoch
    assert zombie.send(topic, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.end(commit=True) == ErrorCode.PRODUCER_FENCED
    if version == 1:
        heir.add(topic, 0)
    assert heir.send(topic, b"whole") == 0
    assert heir.end(commit=True) == 0
    assert until(lambda: committed(wire, topic), [b"whole"]), committed(wire, topic)


@pytest.mark.parametrize(("produce", "code"), [(9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)])
def test_version_1_must_add_a_partition_before_it_writes(wire, produce, code):
    topic = wire.create_topic()
    producer = Producer(wire, version=1).init()
    assert producer.send(topic, b"x", version=produce) == code
    assert wire.end_offset(topic) == 0
    assert producer.add(topic, 0) == [0]
    assert producer.send(topic, b"x", version=produce) == 0
    assert producer.end(commit=True) == 0


def test_an_unknown_producer_cannot_open_a_transaction(wire, version):
    topic = wire.create_topic()
    producer = Producer(wire, version=version).init()
    producer.id += 12345
    assert producer.send(topic, b"x") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert wire.end_offset(topic) == 0


def test_sequences_of_version_2_begin_with_0(wire):
    topic = wire.create_topic()
    producer = Producer(wire).init()
    assert producer.send(topic, b"x", sequence=5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(topic, b"x", sequence=0) == 0
    assert producer.send(topic, b"y") == 0
    assert producer.send(topic, b"y", sequence=1) == 0, "a duplicate"
    assert producer.end(commit=True) == 0
    assert until(lambda: committed(wire, topic), [b"x", b"y"])


def test_many_batches_in_flight_keep_their_order(wire):
    topic = wire.create_topic()
    producer = Producer(wire).init()
    sent = []
    for i in range(5):
        records = batch(
            b"%d" % i, producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=i, transactional=True
        )
        sent.append(wire.send("produce", 12, **produce_fields(topic, records), transactional_id=producer.name))
    answers = [wire.receive("produce", 12, correlation_id) for correlation_id in sent]
    codes = [answer.responses[0].partition_responses[0].error_code for answer in answers]
    assert codes == [0] * 5
    assert producer.end(commit=True) == 0
    assert until(lambda: committed(wire, topic), [b"0", b"1", b"2", b"3", b"4"])


def test_a_partition_that_is_new_to_the_transaction_holds_back_later_requests(wire):
    """Two requests in one packet: the first waits for the coordinator, since it has a new partition as well."""
    old, new = wire.create_topic(), wire.create_topic()
    producer = Producer(wire).init()
    assert producer.send(old, b"0") == 0

    def part(sequence: int) -> dict:
        records = batch(
            b"x", producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=sequence, transactional=True
        )
        return {"index": 0, "records": records}

    topics = [[{"name": old, "partition_data": [part(1)]}, {"name": new, "partition_data": [part(0)]}]]
    topics.append([{"name": old, "partition_data": [part(2)]}])
    packet = b""
    for topic_data in topics:
        fields = {"acks": -1, "timeout": 10_000, "transactional_id": producer.name, "topic_data": topic_data}
        body = request_bytes("produce", 12, 1, "wire", **fields)
        packet += len(body).to_bytes(4, "big") + body
    wire.sock.sendall(packet)
    replies = [wire.receive("produce", 12) for _ in topics]
    codes = [[int(topic.partition_responses[0].error_code) for topic in reply.responses] for reply in replies]
    assert codes == [[0, 0], [0]]


def test_an_abort_never_overtakes_the_partitions_it_aborts(wire):
    """librdkafka sends EndTxn right behind AddPartitionsToTxn when an application aborts what it has just begun.

    Other tests wait for an answer before they ask again. Here the second transaction is opened and given up while the
    first is completed: the request that opens it waits for that, and the one that ends it was handled meanwhile.
    """
    topic = wire.create_topic()
    producer = Producer(wire, version=1).init()
    of_producer = {"producer_id": producer.id, "producer_epoch": producer.epoch}
    aborted = 0
    for _ in range(20):
        assert set(producer.add(topic, 0)) == {0}
        assert producer.send(topic, b"a") == 0
        requested = [
            ("end_txn", 4, {"transactional_id": producer.name, "committed": True, **of_producer}),
            (
                "add_partitions_to_txn",
                3,
                {
                    "v3_and_below_transactional_id": producer.name,
                    "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
                    **{f"v3_and_below_{name}": value for name, value in of_producer.items()},
                },
            ),
            ("end_txn", 4, {"transactional_id": producer.name, "committed": False, **of_producer}),
        ]
        sent = [wire.send(api, version, **fields) for api, version, fields in requested]
        commit, add, abort = (
            wire.receive(api, version, correlation_id)
            for (api, version, _), correlation_id in zip(requested, sent, strict=True)
        )
        assert commit.error_code == ErrorCode.NONE
        code = add.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        if code == CONCURRENT:  # the markers took longer than the broker waits; Kafka's answer, without waiting
            continue
        assert (code, abort.error_code) == (0, 0)
        aborted += 1
    assert aborted


def test_partitions_that_do_not_exist_spoil_the_whole_request(wire):
    topic = wire.create_topic()
    producer = Producer(wire, version=1).init()
    assert producer.add(topic, 0, 7) == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_old_versions_hear_old_codes(wire):
    topic = wire.create_topic()
    zombie = Producer(wire, version=1).init()
    Producer(wire, zombie.name).init()
    assert zombie.add(topic, 0, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert zombie.add(topic, 0, version=2) == [ErrorCode.PRODUCER_FENCED]
    reply = wire.call(
        "end_txn", 1, transactional_id=zombie.name, producer_id=zombie.id, producer_epoch=zombie.epoch, committed=True
    )
    assert reply.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_broker_asks_for_many_transactions_at_once(wire):
    topic = wire.create_topic(partitions=2)
    one, two = Producer(wire, version=1).init(), Producer(wire).init()
    one.add(topic, 0)
    requested = [
        {
            "transactional_id": producer.name,
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "verify_only": producer is one,
            "topics": [{"name": topic, "partitions": [0, 1]}],
        }
        for producer in (one, two)
    ]
    reply = wire.call("add_partitions_to_txn", 4, transactions=requested)
    listed = {
        result.transactional_id: [int(p.partition_error_code) for p in result.topic_results[0].results_by_partition]
        for result in reply.results_by_transaction
    }
    assert listed == {
        one.name: [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE],
        two.name: [ErrorCode.NONE, ErrorCode.NONE],
    }


def test_tools_see_transactions_and_their_producers(wire):
    topic = wire.create_topic()
    producer = Producer(wire, timeout=54_321).init()
    assert producer.send(topic, b"x") == 0
    shown = wire.call("describe_transactions", 0, transactional_ids=[producer.name, "unknown", ""]).transaction_states
    assert [int(state.error_code) for state in shown] == [
        ErrorCode.NONE,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.INVALID_REQUEST,
    ]
    assert shown[0].transaction_state == "Ongoing"
    assert shown[0].transaction_timeout.total_seconds() == 54.321
    assert [(t.topic, list(t.partitions)) for t in shown[0].topics] == [(topic, [0])]
    part = (
        wire.call("describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0, 9]}]).topics[0].partitions
    )
    assert [int(p.error_code) for p in part] == [0, 3]
    active = part[0].active_producers[0]
    assert (active.producer_id, active.current_txn_start_offset, active.last_sequence) == (producer.id, 0, 0)

    def listed(**filters):
        reply = wire.call("list_transactions", 1 if "duration_filter" in filters else 0, **filters)
        assert reply.error_code == ErrorCode.NONE
        return {state.transactional_id: state.transaction_state for state in reply.transaction_states}

    assert listed()[producer.name] == "Ongoing"
    assert producer.name in listed(state_filters=["Ongoing"], producer_id_filters=[producer.id])
    assert producer.name not in listed(state_filters=["Empty"])
    assert listed(producer_id_filters=[10**9]) == {}
    assert producer.name not in listed(duration_filter=600_000)
    assert wire.call("list_transactions", 0, state_filters=["Odd"]).unknown_state_filters == ("Odd",)
    assert producer.end(commit=False) == 0
    assert until(lambda: listed()[producer.name], "CompleteAbort")


def test_a_hanging_transaction_is_cured_by_a_marker(wire):
    """An operator ends a transaction in one partition by hand, as kafka-transactions does."""
    topic = wire.create_topic()
    producer = Producer(wire, version=1).init()
    producer.add(topic, 0)
    assert producer.send(topic, b"hangs") == 0
    state = wire.call("describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
    entry = state.topics[0].partitions[0].active_producers[0]
    marker = {
        "producer_id": entry.producer_id,
        "producer_epoch": int(entry.producer_epoch),
        "transaction_result": False,
        "coordinator_epoch": 0,
        "topics": [{"name": topic, "partition_indexes": [0, 8]}],
    }
    reply = wire.call("write_txn_markers", 1, markers=[marker])
    assert [int(p.error_code) for p in reply.markers[0].topics[0].partitions] == [0, 3]
    assert committed(wire, topic) == []
    assert wire.list_offset(topic, -1, isolation_level=READ_COMMITTED).offset == 2


def test_offsets_count_when_the_transaction_does(wire, version):
    topic, group = wire.create_topic(), unique("group")
    retried(
        lambda: wire.call("find_coordinator", 4, coordinator_keys=[group], key_type=0),
        lambda reply: reply.coordinators[0].error_code,
    )
    producer = Producer(wire, version=version).init()

    def commit_offset(offset: int) -> int:
        if version == 1:
            added = retried(
                lambda: wire.call(
                    "add_offsets_to_txn",
                    3,
                    transactional_id=producer.name,
                    producer_id=producer.id,
                    producer_epoch=producer.epoch,
                    group_id=group,
                )
            )
            assert added.error_code == ErrorCode.NONE
        reply = retried(
            lambda: wire.call(
                "txn_offset_commit", 3 if version == 1 else 5, transactional_id=producer.name, group_id=group,
                producer_id=producer.id, producer_epoch=producer.epoch, generation_id=-1, member_id="",
                topics=[{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": offset}]}],
            ),
            lambda reply: reply.topics[0].partitions[0].error_code,
        )  # fmt: skip
        return int(reply.topics[0].partitions[0].error_code)

    def offset(*, require_stable: bool = False):
        requested = [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}]
        reply = wire.call("offset_fetch", 8, groups=requested, require_stable=require_stable)
        part = reply.groups[0].topics[0].partitions[0]
        return int(part.committed_offset), int(part.error_code)

    assert commit_offset(5) == 0
    assert offset() == (-1, 0)
    assert offset(require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert producer.end(commit=True) == 0
    assert until(offset, (5, 0))
    assert commit_offset(9) == 0
    assert producer.end(commit=False) == 0
    assert until(lambda: offset(require_stable=True), (5, 0))


@pytest.mark.parametrize("version", [3, 4])
def test_offsets_outside_the_transaction_are_refused(wire, version):
    topic, group = wire.create_topic(), unique("group")
    retried(
        lambda: wire.call("find_coordinator", 4, coordinator_keys=[group], key_type=0),
        lambda reply: reply.coordinators[0].error_code,
    )
    producer = Producer(wire, version=1).init()
    fields = {
        "transactional_id": producer.name, "group_id": group, "producer_id": producer.id,
        "producer_epoch": producer.epoch, "generation_id": -1, "member_id": "",
        "topics": [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    }  # fmt: skip
    reply = retried(
        lambda: wire.call("txn_offset_commit", version, **fields),
        lambda reply: reply.topics[0].partitions[0].error_code,
    )
    assert reply.topics[0].partitions[0].error_code == (
        ErrorCode.TRANSACTION_ABORTABLE if version == 4 else ErrorCode.INVALID_TXN_STATE
    )


def test_timeouts_have_a_limit(wire):
    find(wire, "slow")
    reply = retried(lambda: wire.call("init_producer_id", 4, transactional_id="slow", transaction_timeout=10**9))
    assert reply.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_the_log_says_what_happened(node, wire):
    topic = wire.create_topic()
    producer = Producer(wire).init()
    producer.send(topic, b"x")
    Producer(wire, producer.name).init()
    assert re.search(rf"transaction aborted: producer fenced by InitProducerId.*{producer.name}", node.log())


def test_clients_are_told_the_level(wire, node, klamm):
    reply = wire.call("api_versions", 3, client_software_name="story", client_software_version="1")
    levels = {feature.name: int(feature.max_version_level) for feature in reply.finalized_features}
    assert levels.get("transaction.version", 0) == (2 if node is klamm else 0)


def test_idle_producers_keep_their_identity_over_a_restart(tmp_path):
    """What was decided is on disk: ids, epochs, and the markers that were still owed."""
    with KlammProcess(tmp_path) as own:
        with Wire(own.port) as wire:
            topic = wire.create_topic()
            producer = Producer(wire).init()
            assert producer.send(topic, b"before") == 0
            assert producer.end(commit=True) == 0
            open_one = Producer(wire, version=1).init()
            open_one.add(topic, 0)
            assert open_one.send(topic, b"open") == 0
        own.restart(clean=False)
        with Wire(own.port) as wire:
            producer.wire = open_one.wire = wire
            assert (
                retried(
                    lambda: producer.send(topic, b"after"),
                    int,
                    busy=(ErrorCode.NOT_ENOUGH_REPLICAS, *NOT_READY),
                )
                == ErrorCode.NONE
            )
            assert producer.end(commit=True) == 0
            assert committed(wire, topic) == [b"before"], "the open transaction holds the rest back"
            assert retried(lambda: open_one.end(commit=True), int) == 0
            assert until(lambda: committed(wire, topic), [b"before", b"open", b"after"])


def test_offsets_are_added_before_any_group_was_heard_of(tmp_path):
    """A producer of version 1 adds offsets first and looks for the group's coordinator afterwards."""
    with KlammProcess(tmp_path) as fresh, Wire(fresh.port) as wire:
        producer = Producer(wire, version=1).init()
        reply = wire.call(
            "add_offsets_to_txn",
            3,
            transactional_id=producer.name,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            group_id="never-seen",
        )
        assert reply.error_code == ErrorCode.NONE, reply
        fresh.stop()


def test_a_transaction_ends_while_no_producer_ids_can_be_fetched(monkeypatch):
    """Only a producer without further epochs needs a new id: a commit must not wait for a controller that is away."""
    with broker() as node, Wire(node.port) as wire:
        topic = wire.create_topic()
        producer = Producer(wire).init()
        assert producer.send(topic, b"paid") == 0

        async def refuse():
            raise KlammError(ErrorCode.NOT_CONTROLLER)

        monkeypatch.setattr(node.node.services.producer_ids, "ensure", refuse)
        assert producer.end(commit=True) == ErrorCode.NONE
        assert producer.epoch == 1
