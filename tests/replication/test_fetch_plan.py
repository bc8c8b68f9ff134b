"""What a follower says to its leader: everything once, then only what moved, came or goes."""

from types import SimpleNamespace

from klamm.replication.fetch_plan import FIRST_PAUSE_MS, FetchPlan
from klamm.replication.settings import ReplicationConfig


def replica(index, end=0, epoch=1, latest=-1, topic=b"t" * 16):
    log = SimpleNamespace(
        log_end_offset=end, log_start_offset=0, leader_epochs=SimpleNamespace(latest=latest), durable_offset=end
    )
    state = SimpleNamespace(leader_epoch=epoch)
    return SimpleNamespace(topic_id=topic, index=index, log=log, state=state, retired=False, leads=False)


def named(request):
    return {
        part.partition: (part.fetch_offset, part.current_leader_epoch, part.last_fetched_epoch)
        for topic in request.topics
        for part in topic.partitions
    }


def forgotten(request):
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


def plan_of(*replicas, **config):
    plan = FetchPlan(ReplicationConfig(**config))
    return plan, [plan.add(replica) for replica in replicas]


def opened(plan):
    plan.request(1, 7)
    plan.on_session_opened(99)
    return plan


def test_the_first_request_names_everything():
    plan, _ = plan_of(replica(0, end=5, latest=1), replica(1, end=9, epoch=2))
    request = plan.request(3, 77)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (3, 77)
    assert named(request) == {0: (5, 1, 1), 1: (9, 2, -1)}
    assert request.topics[0].topic_id == b"t" * 16
    assert not plan.has_news


def test_later_requests_name_what_moved_and_count_themselves():
    plan, (first, _) = plan_of(replica(0), replica(1))
    opened(plan)
    quiet = plan.request(1, 7)
    assert (quiet.session_id, quiet.session_epoch, quiet.topics) == (99, 1, [])
    first.replica.log.log_end_offset = 3
    plan.mark_moved(first)
    moved = plan.request(1, 7)
    assert (moved.session_epoch, named(moved)) == (2, {0: (3, 1, -1)})


def test_without_a_session_everything_is_named_every_time():
    plan, _ = plan_of(replica(0), replica(1))
    for _ in range(2):
        assert set(named(plan.request(1, 7))) == {0, 1}
        plan.on_session_opened(0)


def test_a_lost_session_is_begun_anew():
    plan, _ = plan_of(replica(0), replica(1))
    opened(plan)
    plan.request(1, 7)
    plan.restart()
    again = plan.request(1, 7)
    assert (again.session_id, again.session_epoch, set(named(again))) == (0, 0, {0, 1})


def test_who_is_gone_is_forgotten_once():
    plan, (first, _) = plan_of(replica(0), replica(1))
    opened(plan)
    plan.remove(first.key)
    assert plan.has_news
    assert forgotten(plan.request(1, 7)) == [0]
    assert forgotten(plan.request(1, 7)) == []
    assert set(plan.partitions) == {(b"t" * 16, 1)}


def test_who_was_never_named_need_not_be_forgotten():
    plan, _ = plan_of(replica(0))
    opened(plan)
    late = plan.add(replica(5))
    plan.remove(late.key)
    assert not plan.has_news


def test_one_that_fails_is_left_out_for_longer_each_time():
    plan, (first, second) = plan_of(replica(0), replica(1), fetch_backoff_ms=50)
    opened(plan)
    assert [plan.pause(first, 0) for _ in range(3)] == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 50]
    assert forgotten(plan.request(1, 7)) == [0]
    assert plan.resume(49) == 1
    assert not plan.has_news
    assert plan.resume(50) is None
    assert named(plan.request(1, 7)) == {0: (0, 1, -1)}
    plan.mark_moved(first)
    assert plan.pause(first, 0) == FIRST_PAUSE_MS, "success forgets failures"
    plan.pause(second, 0)
    assert plan.is_idle


def test_a_pause_that_ends_before_it_was_told_is_no_news_of_leaving():
    plan, (first,) = plan_of(replica(0))
    opened(plan)
    plan.pause(first, 0)
    plan.resume(10**6)
    request = plan.request(1, 7)
    assert (named(request), forgotten(request)) == ({0: (0, 1, -1)}, [])


def test_a_new_epoch_is_said_at_once_and_the_old_life_is_over():
    here = replica(0)
    plan, (old,) = plan_of(here)
    opened(plan)
    plan.pause(old, 0)
    here.state = SimpleNamespace(leader_epoch=2)
    assert not old.current
    new = plan.add(here)
    assert new.current
    assert named(plan.request(1, 7)) == {0: (0, 2, -1)}
    plan.mark_moved(old)
    assert not plan.has_news, "what the old one still brings is ignored"
    assert plan.add(here) is new


def test_one_that_is_held_is_not_named():
    plan, (first, _) = plan_of(replica(0), replica(1))
    first.held = True
    assert set(named(plan.request(1, 7))) == {0, 1}, "added before it was held"
    plan.restart()
    assert set(named(plan.request(1, 7))) == {1}


def test_session_epochs_come_round():
    plan, _ = plan_of(replica(0))
    opened(plan)
    plan._epoch = 2**31 - 1
    assert plan.request(1, 7).session_epoch == 2**31 - 1
    assert plan.request(1, 7).session_epoch == 1
