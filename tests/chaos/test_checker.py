"""The checker finds each violation where one is planted, and nothing in a run without."""

import copy

import pytest

from chaos.checker import check
from chaos.history import Fate, History, Place, Poll, Send, Transaction
from chaos.run import Outcome, add_report

A, B = Place("log", 0), Place("txn", 0)


@pytest.fixture
def healthy():
    """Two plain records, a committed and an aborted transaction, one send of unknown fate that did happen."""
    return History(
        sends=[
            Send("p", 0, A, 1, fate=Fate.OK, offset=0),
            Send("p", 1, A, 2, fate=Fate.OK, offset=1),
            Send("p", 2, A, 3),
            Send("p", 3, A, 4, fate=Fate.FAILED),
            Send("t", 0, B, 10, transaction=0, fate=Fate.OK, offset=0),
            Send("t", 1, B, 11, transaction=0, fate=Fate.OK, offset=1),
            Send("t", 2, B, 12, transaction=1, fate=Fate.OK, offset=3),
        ],
        transactions=[
            Transaction("t", 0, commits=True, fate=Fate.OK),
            Transaction("t", 1, commits=False, fate=Fate.OK),
        ],
        polls=[
            Poll("c", 0, A, [(0, 1), (1, 2)]),
            Poll("c", 0, A, [(2, 3)]),
            Poll("c", 0, B, [(0, 10), (1, 11)]),
        ],
        final={A: [(0, 1), (1, 2), (2, 3)], B: [(0, 10), (1, 11)]},
    )


def kinds(history):
    return {finding.kind for finding in check(history)}


def test_a_healthy_run_has_no_findings(healthy):
    assert check(healthy) == []


def test_what_is_unknown_may_be_missing(healthy):
    healthy.final[A].pop()
    healthy.polls.pop(1)
    assert check(healthy) == []


def lose_an_acknowledged_record(h):
    h.final[A] = [(0, 1), (2, 3)]
    h.polls = []


def forget_what_was_read(h):
    h.final[A].pop()


def write_twice(h):
    h.final[A].append((3, 1))
    h.polls.append(Poll("c", 0, A, [(3, 1)]))


def tell_one_offset_for_two(h):
    h.sends[1].offset = 0


def read_an_aborted_record(h):
    h.polls.append(Poll("c", 0, B, [(3, 12)]))
    h.final[B].append((3, 12))


def read_a_failed_record(h):
    h.final[A].append((3, 4))
    h.polls.append(Poll("c", 0, A, [(3, 4)]))


def hide_a_record(h):
    h.polls.pop(1)


def swap_two_records(h):
    h.final[A] = [(0, 2), (1, 1), (2, 3)]
    h.polls = []
    for send in h.sends:
        send.offset = -1


def tell_offsets_backwards(h):
    h.sends[0].offset = 7


def go_back_in_a_poll(h):
    h.polls.append(Poll("c", 0, A, [(1, 2)]))


def tear_a_transaction(h):
    h.final[B].pop()
    h.polls.pop()
    h.transactions[0].fate = Fate.UNKNOWN


def invent_a_record(h):
    h.final[A].append((3, 99))
    h.polls.append(Poll("c", 0, A, [(3, 99)]))


def refuse_a_transaction(h):
    h.refused.append("t in transaction 1: INVALID_TXN_STATE")


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lose_an_acknowledged_record, "lost-write"),
        (forget_what_was_read, "lost-write"),
        (write_twice, "duplicate"),
        (tell_one_offset_for_two, "inconsistent-offsets"),
        (read_an_aborted_record, "aborted-read"),
        (read_a_failed_record, "aborted-read"),
        (hide_a_record, "unseen"),
        (swap_two_records, "nonmonotonic-send"),
        (tell_offsets_backwards, "nonmonotonic-send"),
        (go_back_in_a_poll, "nonmonotonic-poll"),
        (tear_a_transaction, "torn-transaction"),
        (invent_a_record, "out-of-thin-air"),
        (refuse_a_transaction, "refused-transaction"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_each_violation_is_found(healthy, plant, kind):
    broken = copy.deepcopy(healthy)
    plant(broken)
    assert kind in kinds(broken)


def test_a_new_assignment_may_go_back(healthy):
    healthy.polls.append(Poll("c", 1, A, [(1, 2)]))
    assert check(healthy) == []


def test_a_run_replaces_its_own_part_of_the_report_only():
    def outcome(seed, *, secured):
        return Outcome(seed, 60.0, History(), {"kill": 1}, [], secured)

    page = add_report("", outcome(1, secured=False), is_forced=False)
    page = add_report(page, outcome(2, secured=True), is_forced=True)
    assert "SEED=1 MINUTES=1" in page
    assert "make chaos SECURED=1 SEED=2 MINUTES=1" in page
    page = add_report(page, outcome(3, secured=True), is_forced=False)
    assert "make chaos SEED=3" in page
    assert "SEED=1" not in page
    assert "SECURED=1 SEED=2" in page
    assert page.count("Last run with security forced on") == 1
