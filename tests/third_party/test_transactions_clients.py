"""Transactions as three clients make them: committed, aborted, with offsets, fenced, out of time."""

import time

import pytest

from harness import KlammProcess, Wire, unique

from .transactional import ALL, ConfluentTxn, Fenced, committed_offset, read_all

# kafka-python leaves sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(params=ALL, ids=lambda kind: kind.name)
def kind(request):
    return request.param


@pytest.fixture
def topic(klamm):
    with Wire(klamm.port) as wire:
        return wire.create_topic(partitions=2)


def test_readers_of_committed_data_see_whole_transactions(klamm, kind, topic):
    producer = kind(klamm.bootstrap, unique("txn"))
    try:
        for number, commit in enumerate([True, False, True, True, False, True]):
            producer.begin()
            for partition in (0, 1):
                producer.send(topic, b"%d.a" % number, partition)
                producer.send(topic, b"%d.b" % number, partition)
            producer.flush()
            if commit:
                producer.commit()
            else:
                producer.abort()
    finally:
        producer.close()
    kept = [b"%d.%s" % (number, part) for number in (0, 2, 3, 5) for part in (b"a", b"b")]
    assert read_all(klamm.bootstrap, topic, partitions=2) == [kept, kept]
    everything = [b"%d.%s" % (number, part) for number in range(6) for part in (b"a", b"b")]
    assert read_all(klamm.bootstrap, topic, partitions=2, committed=False) == [everything, everything]


def test_offsets_go_with_the_transaction(klamm, kind, topic):
    group = unique("group")
    producer = kind(klamm.bootstrap, unique("txn"))
    producer.bootstrap = klamm.bootstrap
    try:
        producer.begin()
        producer.send(topic, b"x")
        producer.send_offsets({(topic, 0): 7, (topic, 1): 9}, group)
        producer.commit()
        assert committed_offset(klamm.bootstrap, group, topic) == 7
        producer.begin()
        producer.send_offsets({(topic, 0): 100}, group)
        producer.abort()
        assert committed_offset(klamm.bootstrap, group, topic) == 7
        assert committed_offset(klamm.bootstrap, group, topic, 1) == 9
    finally:
        producer.close()


def test_a_twin_fences_the_one_before(klamm, kind, topic):
    name = unique("txn")
    zombie = kind(klamm.bootstrap, name)
    zombie.begin()
    zombie.send(topic, b"zombie")
    zombie.flush()
    heir = ConfluentTxn(klamm.bootstrap, name)
    try:
        heir.begin()
        heir.send(topic, b"heir")
        heir.commit()
        with pytest.raises(Fenced):
            zombie.commit()
    finally:
        heir.close()
        zombie.close()
    assert read_all(klamm.bootstrap, topic)[0] == [b"heir"]


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    overrides = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with KlammProcess(tmp_path_factory.mktemp("impatient"), overrides=overrides) as process:
        yield process


def test_a_transaction_out_of_time_is_aborted_and_readers_go_on(impatient, kind):
    with Wire(impatient.port) as wire:
        topic = wire.create_topic()
    slow = kind(impatient.bootstrap, unique("slow"), 1000)
    quick = ConfluentTxn(impatient.bootstrap, unique("quick"))
    try:
        slow.begin()
        slow.send(topic, b"slow")
        slow.flush()
        quick.begin()
        quick.send(topic, b"quick")
        quick.commit()
        deadline = time.monotonic() + 20
        while read_all(impatient.bootstrap, topic)[0] != [b"quick"]:
            assert time.monotonic() < deadline, "the slow transaction holds readers back"
        with pytest.raises(Exception):  # noqa: B017 - every client has its own exception
            slow.commit()
    finally:
        quick.close()
        slow.close()
    assert "transaction aborted: transaction timeout exceeded" in impatient.log()
