"""Records of aborted and open transactions: left out by default, marked when all are shown."""

import pytest

from klamm.console.transaction_marks import split_runs
from klamm.testing import unique

from .test_pages import make_topic, places


@pytest.fixture
def topic(broker, console):
    """One record outside of transactions, then one committed, two aborted, one committed and one of an open one."""
    topic = make_topic(broker, console, partitions=1, records=[(None, b"plain")])
    with broker.producer(transactional_id=unique("tx")) as producer:
        producer.init_transactions()
        for values, ends in (([b"kept"], True), ([b"lost", b"gone"], False), ([b"late"], True)):
            producer.begin_transaction()
            for value in values:
                producer.send(topic, value).result()
            if ends:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"open").result()
        yield topic
        producer.abort_transaction()


# Markers take offsets: plain 0, kept 1, marker 2, lost 3, gone 4, marker 5, late 6, marker 7, open 8.


def test_records_of_aborted_and_open_transactions_are_left_out(topic, visit):
    page = visit.get(f"/c/test/topics/{topic}/messages")
    assert places(page) == ["0/6", "0/1", "0/0"]
    assert "1 offset is of an open transaction, or behind one, and not read." in page
    assert "--read-committed" in page
    assert "isolation=read_uncommitted" in page


def test_all_records_are_shown_with_their_marks(topic, visit):
    page = visit.get(f"/c/test/topics/{topic}/messages?isolation=read_uncommitted")
    assert places(page) == ["0/8", "0/6", "0/4", "0/3", "0/1", "0/0"]
    assert page.count(">aborted<") == 2
    assert page.count(">not committed<") == 1
    assert "--read-committed" not in page


def test_the_links_of_a_page_keep_its_isolation(topic, visit):
    base = f"/c/test/topics/{topic}/messages"
    page = visit.get(f"{base}?isolation=read_uncommitted&start=earliest")
    assert places(page) == ["0/0", "0/1", "0/3", "0/4", "0/6", "0/8"]
    assert f"{base}/live?isolation=read_uncommitted" in page
    assert "lost" in visit.get(f"{base}/export?isolation=read_uncommitted")
    assert "lost" not in visit.get(f"{base}/export")
    assert "there is no isolation" in visit.get(f"{base}?isolation=serializable", 400)


def test_one_record_says_what_became_of_its_transaction(topic, visit):
    base = f"/c/test/topics/{topic}/messages/0"
    assert "skip it" in visit.get(f"{base}/3")
    assert "do not get it yet" in visit.get(f"{base}/8")
    assert "Transaction</dt>" not in visit.get(f"{base}/6")


def test_records_far_from_each_other_are_checked_by_themselves():
    assert split_runs([5, 1, 2, 900, 5000]) == [[1, 2, 5, 900], [5000]]
