"""Proposals of ISR changes: one request for all of a moment, and every answer of the controller, or none, is safe."""

import asyncio

import pytest

from klamm.metadata.image import BrokerImage, ClusterImage, MetadataImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import alter_partition as ap
from klamm.telemetry.log import configure

from .test_manager import ME, Node

BROKER_EPOCH = 100


class IsrLeader(Node):
    """A leader of partitions, and a controller whose answers the test writes."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.requests: list[ap.AlterPartitionRequest] = []
        self.answers: list[object] = []
        self.manager.isr.start(self._answer, lambda: BROKER_EPOCH)
        self.brokers()

    def brokers(self, *, fenced=(), epochs=None):
        known = {
            n: BrokerImage(n, (epochs or {}).get(n, n * 10), b"i" * 16, {}, fenced=n in fenced) for n in (ME, 2, 3)
        }
        self.manager.image = MetadataImage(cluster=ClusterImage(known))

    async def _answer(self, request):
        self.requests.append(request)
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

    def fetch(self, replica, follower, offset, now_ms=0, epoch=None):
        broker_epoch = follower * 10 if epoch is None else epoch
        replica.state.on_follower_fetch(
            follower, offset, replica.log.log_end_offset, now_ms, broker_epoch=broker_epoch, eligible=True
        )
        self.manager.isr.consider(replica, follower)

    def proposals(self, at=-1):
        return [
            (partition.partition_index, [(m.broker_id, m.broker_epoch) for m in partition.new_isr_with_epochs])
            for topic in self.requests[at].topics
            for partition in topic.partitions
        ]


@pytest.fixture
def node(tmp_path):
    made = IsrLeader(tmp_path)
    yield made
    made.logs.close(clean=False)


async def settle(rounds=20):
    for _ in range(rounds):
        await asyncio.sleep(0)


def run(node, scenario):
    async def run_and_stop():
        await scenario()
        await settle()
        node.manager.isr.stop()

    asyncio.run(run_and_stop())


def test_a_follower_that_has_everything_is_proposed_with_its_broker_epoch(node):
    replica = node.lead("t", replicas=(ME, 2, 3), isr=(ME,))
    node.brokers()

    async def scenario():
        node.fetch(replica, 2, 0)
        assert replica.state.proposed == (ME, 2)
        await settle()

    run(node, scenario)
    assert node.proposals() == [(0, [(ME, BROKER_EPOCH), (2, 20)])]
    assert node.requests[0].broker_epoch == BROKER_EPOCH
    assert replica.state.proposed == (ME, 2), "it counts until the metadata log decides"


def test_many_at_once_are_one_request(node):
    node.lead("t", partitions=5, replicas=(ME, 2, 3), isr=(ME,))
    node.brokers()

    async def scenario():
        for replica in node.manager:
            node.fetch(replica, 2, 0)

    run(node, scenario)
    assert len(node.requests) == 1
    assert [index for index, _ in node.proposals()] == [0, 1, 2, 3, 4]


def test_the_leader_logs_each_applied_change_of_the_isr_once(node, capsys):
    configure()  # tests that ran before may have left another level
    node.lead("t", replicas=(ME, 2, 3), isr=(ME, 2, 3))
    node.lead("t", replicas=(ME, 2, 3), isr=(ME, 3), epoch=1)
    node.lead("t", replicas=(ME, 2, 3), isr=(ME, 3), epoch=1)
    node.lead("t", replicas=(ME, 2, 3), isr=(ME, 3, 2), epoch=2)
    node.lead("t", replicas=(ME, 2, 3), isr=(2, 3), leader=2, epoch=3)
    lines = [line for line in capsys.readouterr().err.splitlines() if "ISR" in line]
    assert [line.split("replication ")[1] for line in lines] == [
        'ISR shrunk partition=t-0 before="[1, 2, 3]" after="[1, 3]"',
        'ISR expanded partition=t-0 before="[1, 3]" after="[1, 3, 2]"',
    ], "nothing for the first metadata, for the same again, or when another broker leads"


@pytest.mark.parametrize("why", ["fenced", "another epoch", "unknown"])
def test_a_follower_the_controller_would_refuse_waits_until_that_changes(node, why):
    replica = node.lead("t", replicas=(ME, 2, 3, 4), isr=(ME,))
    follower = 4 if why == "unknown" else 2
    node.brokers(fenced=(2,) if why == "fenced" else (), epochs={2: 21} if why == "another epoch" else None)

    async def scenario():
        node.fetch(replica, follower, 0)
        await settle()
        assert node.requests == []
        if why == "unknown":
            return
        node.brokers()
        node.manager.isr.reconsider_candidates()

    run(node, scenario)
    assert len(node.requests) == (why != "unknown")


def test_a_refusal_leaves_the_follower_a_candidate(node):
    replica = node.lead("t", replicas=(ME, 2, 3), isr=(ME,))
    node.brokers()
    node.answers = [ErrorCode.INELIGIBLE_REPLICA]

    async def scenario():
        node.fetch(replica, 2, 0)
        await settle()
        assert replica.state.proposed is None
        node.manager.isr.reconsider_candidates()

    run(node, scenario)
    assert len(node.requests) == 2


@pytest.mark.parametrize("code", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_proposal_that_was_overtaken_counts_until_the_metadata_log_decides(node, code):
    """Perhaps an answer was lost and the very proposal was decided: forgetting it would commit without the follower."""
    replica = node.lead("t", replicas=(ME, 2, 3), isr=(ME,))
    node.brokers()
    node.answers = [code]

    async def scenario():
        node.fetch(replica, 2, 0)

    run(node, scenario)
    assert len(node.requests) == 1
    assert replica.state.proposed == (ME, 2)


@pytest.mark.parametrize(
    "failure", [OSError("gone"), KlammError(ErrorCode.REQUEST_TIMED_OUT), ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_a_proposal_without_a_decision_is_sent_again(node, failure):
    replica = node.lead("t", replicas=(ME, 2, 3), isr=(ME,))
    node.brokers()
    node.answers = [failure, failure]

    async def scenario():
        node.fetch(replica, 2, 0)
        async with asyncio.timeout(30):
            while len(node.requests) < 3:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)

    run(node, scenario)
    assert node.proposals(0) == node.proposals(2)


def test_a_laggard_is_proposed_to_leave_and_still_counts(node):
    replica = node.lead("t", replicas=(ME, 2, 3), isr=(ME, 2, 3))
    node.brokers()
    node.fetch(replica, 3, 0)
    node.stage(replica, b"x")
    node.manager.write_staged()
    replica.state.on_follower_fetch(3, 1, 1, 0, broker_epoch=30)

    async def scenario():
        node.manager.isr.check_lag(replica.state.in_sync_until_ms + replica.state.lag_ms + 1)

    run(node, scenario)
    assert [members for _, members in node.proposals()] == [[(ME, BROKER_EPOCH), (3, 30)]]
    assert replica.log.high_watermark == 0


def test_no_change_is_proposed_for_a_partition_that_is_led_elsewhere_by_now(node):
    replica = node.lead("t", replicas=(ME, 2, 3), isr=(ME,))
    node.brokers()

    async def scenario():
        node.fetch(replica, 2, 0)
        replica.state.leader = 2
        replica.refresh()

    run(node, scenario)
    assert node.requests == []
