"""What a leader notes of a follower that names many partitions, when leadership changes while it is noted."""

from types import SimpleNamespace

from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.replication.follower_sessions import FollowerSessions
from klamm.server.handlers.data import fetch_follower
from klamm.server.requests.slices import SLICE_ELEMENTS

TOPIC_ID = b"t" * 16
FOLLOWER = 2
COUNT = 3 * SLICE_ELEMENTS


class FakeState:
    """The leader's view of the replicas: remembers which followers were heard of."""

    def __init__(self) -> None:
        self.isr = (1, FOLLOWER)
        self.followers = {FOLLOWER: SimpleNamespace(broker_epoch=-1)}
        self.high_watermark = 0
        self.received: list[int] = []

    @staticmethod
    def check_leader_epoch(epoch: int) -> int:
        return 0

    def on_follower_fetch(self, follower: int, *_, **__) -> int:
        self.received.append(follower)
        return 0


def fake_replica() -> SimpleNamespace:
    log = SimpleNamespace(
        log_start_offset=0,
        log_end_offset=0,
        high_watermark=0,
        last_stable_offset=0,
        leader_epochs=SimpleNamespace(latest=0),
    )
    settings = SimpleNamespace(throttled_leaders=())
    return SimpleNamespace(
        leads=False,
        retired=False,
        followed=[],
        state=FakeState(),
        log=log,
        acknowledged_end_offset=0,
        settings=settings,
    )


def test_a_follower_counts_although_leadership_came_between_two_slices():
    """Leadership of many partitions comes in slices, too. A partition that was not led yet when the follower's place
    was noted, and was when it was read, told the follower nothing and had heard nothing of it: with no more records
    it fell out of the ISR and never came back. On fewer partitions both happen in one turn, so no test saw it.
    """
    replicas = {(TOPIC_ID, index): fake_replica() for index in range(COUNT)}
    services = SimpleNamespace(
        replicas=SimpleNamespace(find_by_id=lambda topic_id, index: replicas[topic_id, index], isr=SimpleNamespace()),
        clock=SimpleNamespace(monotonic_ms=lambda: 0),
        image=SimpleNamespace(topics=SimpleNamespace(by_id={})),
    )
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[
            FetchTopic(
                topic_id=TOPIC_ID,
                partitions=[
                    FetchPartition(
                        partition=index, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=0,
                        last_fetched_epoch=-1,
                    )
                    for index in range(COUNT)
                ],
            )
        ],
    )  # fmt: skip
    session, _ = FollowerSessions().resolve(0, 0, FOLLOWER, 5)
    fetch = fetch_follower._FollowerFetch(services, SimpleNamespace(), request, session, full=True)
    steps = fetch_follower._handle_many(services, session, request, fetch, force=True)
    noted = 0
    while noted < COUNT:  # the first steps keep what is asked, the next ones note where the follower is
        noted += next(steps) == 1 and bool(session.changed)
    for replica in replicas.values():
        replica.leads = True
    for _ in steps:
        pass
    missing = [index for (_, index), replica in replicas.items() if replica.state.received != [FOLLOWER]]
    assert missing == []
