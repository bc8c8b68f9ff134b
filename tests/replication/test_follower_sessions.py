"""The leader's memory of its followers: sessions that go on, begin anew, and let go."""

from types import SimpleNamespace

import pytest

from klamm.model.errors import ErrorCode, KlammError
from klamm.replication.follower_sessions import SESSIONS_PER_FOLLOWER_MAX, FollowerSessions

KEY = (b"t" * 16, 0)


def begin(sessions, follower=2, epoch=5):
    session, goes_on = sessions.resolve(0, 0, follower, epoch)
    assert not goes_on
    return session


def test_a_session_goes_on_as_long_as_it_counts_right():
    sessions = FollowerSessions()
    session = begin(sessions)
    for number in (1, 2, 3):
        assert sessions.resolve(session.id, number, 2, 5) == (session, True)
    with pytest.raises(KlammError) as refused:
        sessions.resolve(session.id, 3, 2, 5)
    assert refused.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH


@pytest.mark.parametrize(("session_id", "follower"), [(999, 2), (1, 3)])
def test_nobody_goes_on_with_what_is_not_theirs(session_id, follower):
    sessions = FollowerSessions()
    assert begin(sessions).id == 1
    with pytest.raises(KlammError) as refused:
        sessions.resolve(session_id, 1, follower, 5)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_replica_knows_who_follows_it_until_they_let_go():
    sessions = FollowerSessions()
    session = begin(sessions)
    replica, other = SimpleNamespace(followed=[]), SimpleNamespace(followed=[])
    place = session.partition(KEY)
    place.attach(replica)
    assert replica.followed == [place]
    place.attach(other)
    assert (replica.followed, other.followed) == ([], [place])
    place.touch()
    session.forget(KEY)
    assert (other.followed, session.changed, session.partitions) == ([], {}, {})


def test_closing_lets_go_of_every_replica():
    sessions = FollowerSessions()
    session = begin(sessions)
    replicas = [SimpleNamespace(followed=[]) for _ in range(3)]
    for index, replica in enumerate(replicas):
        session.partition((KEY[0], index)).attach(replica)
    sessions.close(session.id, 2)
    assert [replica.followed for replica in replicas] == [[], [], []]
    assert len(sessions) == 0


def test_a_final_fetch_has_no_session_and_ends_the_one_it_names():
    sessions = FollowerSessions()
    session = begin(sessions)
    last, goes_on = sessions.resolve(session.id, -1, 2, 5)
    assert (last.id, goes_on, len(sessions)) == (0, False, 0)


def test_a_new_life_of_a_follower_ends_the_sessions_of_the_old():
    sessions = FollowerSessions()
    old, foreign = begin(sessions, epoch=5), begin(sessions, follower=3)
    new = begin(sessions, epoch=6)
    assert list(sessions) == [foreign, new]
    assert old.id not in {session.id for session in sessions}


def test_lost_connections_do_not_pile_up():
    sessions = FollowerSessions()
    made = [begin(sessions) for _ in range(SESSIONS_PER_FOLLOWER_MAX + 5)]
    assert list(sessions) == made[5:]


def test_where_a_follower_is_ends_the_wait_for_its_word():
    place = begin(FollowerSessions()).partition(KEY)
    place.sent = True
    place.update(5, 100, 1, 1, 0)
    assert (place.sent, place.fetch_offset) == (False, 5)
