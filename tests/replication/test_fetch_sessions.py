"""Fetch sessions by the table of KIP-227, and what happens when there is no room for one."""

from random import Random

import pytest

from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import ZERO_UUID
from klamm.replication.fetch_sessions import STALE_MS, FetchedPartition, FetchSessions

ID = b"\x01" * 16


def named(topic, index=0, offset=0):
    return FetchedPartition(topic, ZERO_UUID, index, offset, 1000)


def by_id(topic_id, index=0, offset=0):
    return FetchedPartition(None, topic_id, index, offset, 1000)


class Sessions:
    """The cache with the arguments most stories do not care about."""

    def __init__(self, slots=10) -> None:
        self.cache = FetchSessions(slots, Random(5))

    def ask(self, session_id=0, epoch=-1, partitions=(), forgotten=(), *, ids=False, follower=False, now=0):
        return self.cache.resolve(
            session_id, epoch, list(partitions), forgotten, uses_topic_ids=ids, privileged=follower, now_ms=now
        )


@pytest.fixture
def sessions():
    return Sessions()


def keys(context):
    return [partition.key for partition in context.partitions]


def test_without_a_session(sessions):
    context = sessions.ask(0, -1, [named("a")])
    assert (context.session_id, context.incremental, keys(context)) == (0, False, [("a", 0)])
    assert len(sessions.cache) == 0


def test_the_life_of_a_session(sessions):
    begun = sessions.ask(0, 0, [named("a"), named("b")])
    assert begun.session_id > 0
    assert not begun.incremental
    session = begun.session_id
    again = sessions.ask(session, 1)
    assert again.incremental
    assert keys(again) == [("a", 0), ("b", 0)]
    moved = sessions.ask(session, 2, [named("b", offset=7), named("c")], [("a", 0)])
    assert keys(moved) == [("b", 0), ("c", 0)]
    assert moved.partitions[0].fetch_offset == 7
    ended = sessions.ask(session, -1)
    assert (ended.session_id, len(sessions.cache)) == (0, 0)


def test_what_was_told_stays_when_a_client_moves_on(sessions):
    session = sessions.ask(0, 0, [named("a")]).session_id
    context = sessions.ask(session, 1)
    context.partitions[0].sent_high_watermark = 42
    moved = sessions.ask(session, 2, [named("a", offset=5)])
    assert (moved.partitions[0].sent_high_watermark, moved.partitions[0].fetch_offset) == (42, 5)


def test_a_session_that_forgets_everything_ends(sessions):
    session = sessions.ask(0, 0, [named("a")]).session_id
    context = sessions.ask(session, 1, [], [("a", 0)])
    assert (context.session_id, context.partitions, len(sessions.cache)) == (0, [], 0)


@pytest.mark.parametrize(
    ("change", "epoch", "ids", "error"),
    [
        (1, 1, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 2, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (0, 7, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (0, 1, True, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_what_is_refused(sessions, change, epoch, ids, error):
    session = sessions.ask(0, 0, [named("a")]).session_id
    with pytest.raises(KlammError) as refused:
        sessions.ask(session + change, epoch, ids=ids)
    assert refused.value.code == error
    assert keys(sessions.ask(session, 1)) == [("a", 0)]  # a refusal leaves the session as it was


def test_a_refused_request_forgets_nothing(sessions):
    session = sessions.ask(0, 0, [named("a"), named("b")]).session_id
    with pytest.raises(KlammError):
        sessions.ask(session, 9, [named("c")], [("a", 0)])
    assert keys(sessions.ask(session, 1)) == [("a", 0), ("b", 0)]


def test_sessions_by_id(sessions):
    session = sessions.ask(0, 0, [by_id(ID)], ids=True).session_id
    assert keys(sessions.ask(session, 1, ids=True)) == [(ID, 0)]
    assert keys(sessions.ask(session, 2, [by_id(ID, 1)], [(ID, 0)], ids=True)) == [(ID, 1)]


def test_epochs_start_again_at_1(sessions):
    session = sessions.ask(0, 0, [named("a")])
    assert session.session is not None
    session.session.epoch = 2**31 - 1
    sessions.ask(session.session_id, 2**31 - 1)
    assert session.session.epoch == 1


def test_who_had_its_turn_goes_to_the_end(sessions):
    begun = sessions.ask(0, 0, [named("a"), named("b"), named("c")])
    begun.session.rotate([("a", 0)])
    assert keys(sessions.ask(begun.session_id, 1)) == [("b", 0), ("c", 0), ("a", 0)]


def test_a_full_cache_gives_no_session():
    sessions = Sessions(slots=2)
    assert all(sessions.ask(0, 0, [named("a")]).session_id for _ in range(2))
    declined = sessions.ask(0, 0, [named("a")])
    assert (declined.session_id, keys(declined)) == (0, [("a", 0)])
    assert len(sessions.cache) == 2


def test_the_session_unused_for_longest_is_given_up_once_it_is_stale():
    sessions = Sessions(slots=2)
    old = sessions.ask(0, 0, [named("a")], now=0).session_id
    young = sessions.ask(0, 0, [named("a")], now=10).session_id
    assert sessions.ask(0, 0, [named("a")], now=STALE_MS - 1).session_id == 0
    new = sessions.ask(0, 0, [named("a")], now=STALE_MS).session_id
    assert new
    with pytest.raises(KlammError):
        sessions.ask(old, 1, now=STALE_MS)
    assert keys(sessions.ask(young, 1, now=STALE_MS)) == [("a", 0)]


def test_a_used_session_is_not_stale():
    sessions = Sessions(slots=1)
    session = sessions.ask(0, 0, [named("a")], now=0).session_id
    sessions.ask(session, 1, now=STALE_MS)
    assert sessions.ask(0, 0, [named("a")], now=STALE_MS + 1).session_id == 0


def test_a_follower_takes_the_place_of_a_client_but_never_the_reverse():
    sessions = Sessions(slots=1)
    client = sessions.ask(0, 0, [named("a")], now=0).session_id
    follower = sessions.ask(0, 0, [named("a")], follower=True, now=1).session_id
    assert follower
    with pytest.raises(KlammError):
        sessions.ask(client, 1)
    assert sessions.ask(0, 0, [named("a")], now=10 * STALE_MS).session_id == 0


def test_a_cache_without_slots_never_gives_one():
    sessions = Sessions(slots=0)
    assert sessions.ask(0, 0, [named("a")]).session_id == 0
    assert sessions.ask(0, 0, [named("a")], follower=True).session_id == 0
