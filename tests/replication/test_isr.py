"""Proposals of in-sync replicas: one request for all, and whatever the controller says, or does not, is safe."""

import asyncio

import pytest

from klamm.metadata.image import BrokerImage, ClusterImage, MetadataImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import alter_partition as ap

from .test_manager import ME, Node


class House(Node):
    """A leader of partitions, and a controller whose answers the test writes."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.asked: list[ap.AlterPartitionRequest] = []
        self.answers: list[object] = []
        self.manager.isr.alter_partition = self._answer
        self.manager.isr.broker_epoch = lambda: 100
        self.brokers()

    def brokers(self, *, fenced=(), epochs=None):
        known = {
            n: BrokerImage(n, (epochs or {}).get(n, n * 10), b"i" * 16, {}, fenced=n in fenced) for n in (ME, 2, 3)
        }
        self.manager.image = MetadataImage(cluster=ClusterImage(known))

    async def _answer(self, request):
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else ErrorCode.NONE
        if isinstance(answer, Exception):
            raise answer
        topics = [
            ap.TopicDataResponse(
                topic_id=topic.topic_id,
                partitions=[
                    ap.PartitionDataResponse(
                        partition_index=partition.partition_index,
                        error_code=answer,
                        partition_epoch=partition.partition_epoch + (answer == ErrorCode.NONE),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return ap.AlterPartitionResponse(topics=topics)

    def fetched(self, replica, follower, offset, now_ms=0, epoch=None):
        broker_epoch = follower * 10 if epoch is None else epoch
        replica.state.on_follower_fetch(
            follower, offset, replica.log.log_end_offset, now_ms, broker_epoch=broker_epoch, eligible=True
        )
        self.manager.isr.consider(replica, follower)

    def wanted(self, at=-1):
        return [
            (partition.partition_index, [(m.broker_id, m.broker_epoch) for m in partition.new_isr_with_epochs])
            for topic in self.asked[at].topics
            for partition in topic.partitions
        ]


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path)
    yield made
    made.logs.close(clean=False)


async def settle(house, rounds=20):
    for _ in range(rounds):
        await asyncio.sleep(0)


def story(house, tell):
    async def run():
        await tell()
        await settle(house)
        house.manager.isr.stop()

    asyncio.run(run())


def test_a_follower_that_has_everything_is_proposed_with_its_life(house):
    replica = house.lead("t", replicas=(ME, 2, 3), isr=(ME,))
    house.brokers()

    async def tell():
        house.fetched(replica, 2, 0)
        assert replica.state.proposed == (ME, 2)
        await settle(house)

    story(house, tell)
    assert house.wanted() == [(0, [(ME, 100), (2, 20)])]
    assert house.asked[0].broker_epoch == 100
    assert replica.state.proposed == (ME, 2), "it counts until the metadata log tells"


def test_many_at_once_are_one_request(house):
    house.lead("t", partitions=5, replicas=(ME, 2, 3), isr=(ME,))
    house.brokers()

    async def tell():
        for replica in house.manager:
            house.fetched(replica, 2, 0)

    story(house, tell)
    assert len(house.asked) == 1
    assert [index for index, _ in house.wanted()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("why", ["fenced", "another life", "unknown"])
def test_who_the_controller_would_refuse_waits_until_that_changes(house, why):
    replica = house.lead("t", replicas=(ME, 2, 3, 4), isr=(ME,))
    follower = 4 if why == "unknown" else 2
    house.brokers(fenced=(2,) if why == "fenced" else (), epochs={2: 21} if why == "another life" else None)

    async def tell():
        house.fetched(replica, follower, 0)
        await settle(house)
        assert house.asked == []
        if why == "unknown":
            return
        house.brokers()
        house.manager.isr.look_again()

    story(house, tell)
    assert len(house.asked) == (why != "unknown")


def test_a_refusal_leaves_the_follower_a_candidate(house):
    replica = house.lead("t", replicas=(ME, 2, 3), isr=(ME,))
    house.brokers()
    house.answers = [ErrorCode.INELIGIBLE_REPLICA]

    async def tell():
        house.fetched(replica, 2, 0)
        await settle(house)
        assert replica.state.proposed is None
        house.manager.isr.look_again()

    story(house, tell)
    assert len(house.asked) == 2


@pytest.mark.parametrize("code", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_proposal_that_was_overtaken_counts_until_the_metadata_log_tells(house, code):
    """Perhaps an answer was lost and the very proposal was decided: forgetting it would commit without the follower."""
    replica = house.lead("t", replicas=(ME, 2, 3), isr=(ME,))
    house.brokers()
    house.answers = [code]

    async def tell():
        house.fetched(replica, 2, 0)

    story(house, tell)
    assert len(house.asked) == 1
    assert replica.state.proposed == (ME, 2)


@pytest.mark.parametrize(
    "failure", [OSError("gone"), KlammError(ErrorCode.REQUEST_TIMED_OUT), ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_a_controller_that_cannot_say_is_asked_again(house, failure):
    replica = house.lead("t", replicas=(ME, 2, 3), isr=(ME,))
    house.brokers()
    house.answers = [failure, failure]

    async def tell():
        house.fetched(replica, 2, 0)
        async with asyncio.timeout(30):
            while len(house.asked) < 3:  # noqa: ASYNC110 - the house has no event to wait for
                await asyncio.sleep(0.01)

    story(house, tell)
    assert house.wanted(0) == house.wanted(2)


def test_a_laggard_is_proposed_to_leave_and_still_counts(house):
    replica = house.lead("t", replicas=(ME, 2, 3), isr=(ME, 2, 3))
    house.brokers()
    house.fetched(replica, 3, 0)
    house.stage(replica, b"x")
    house.manager.commit()
    replica.state.on_follower_fetch(3, 1, 1, 0, broker_epoch=30)

    async def tell():
        house.manager.isr.check_lag(replica.state.settled_ms + replica.state.lag_ms + 1)

    story(house, tell)
    assert [members for _, members in house.wanted()] == [[(ME, 100), (3, 30)]]
    assert replica.log.high_watermark == 0


def test_nobody_is_proposed_for_a_partition_that_is_led_elsewhere_by_now(house):
    replica = house.lead("t", replicas=(ME, 2, 3), isr=(ME,))
    house.brokers()

    async def tell():
        house.fetched(replica, 2, 0)
        replica.state.leader = 2
        replica.refresh()

    story(house, tell)
    assert house.asked == []
