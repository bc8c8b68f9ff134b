"""A broker's own side of its life: it insists on being registered, beats, comes back from a fence, and says goodbye."""

import asyncio
import uuid

import pytest

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE
from klamm.metadata.loader import MetadataLoader
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from klamm.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from klamm.protocol.messages.metadata_records import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from klamm.server.cluster.lifecycle import BrokerLifecycle, BrokerState

pytestmark = pytest.mark.asyncio

PATIENCE_S = 20.0
EPOCH = 3


class Controller:
    """A channel to a controller that answers from lists; the last answer stays."""

    def __init__(self, registrations=(), beats=()):
        self.answers = {BrokerRegistrationRequest: list(registrations), BrokerHeartbeatRequest: list(beats)}
        self.requested = []
        self.received = asyncio.Event()

    async def ask(self, request, *, timeout_ms):
        assert timeout_ms > 0
        self.requested.append(request)
        self.received.set()
        answers = self.answers[type(request)]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def beats(self):
        return [request for request in self.requested if isinstance(request, BrokerHeartbeatRequest)]

    async def beaten(self, count):
        async with asyncio.timeout(PATIENCE_S):
            while len(self.beats()) < count:
                self.received.clear()
                await self.received.wait()


REGISTERED = BrokerRegistrationResponse(broker_epoch=EPOCH)
FENCED = BrokerHeartbeatResponse(is_caught_up=False, is_fenced=True)
RUNNING = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False)
MAY_STOP = BrokerHeartbeatResponse(is_fenced=True, should_shut_down=True)


def metadata(*broker_ids, offset=EPOCH):
    """An image in which these brokers are alive."""
    delta = MetadataDelta(EMPTY_IMAGE)
    for broker_id in broker_ids:
        delta.replay(RegisterBrokerRecord(broker_id=broker_id, broker_epoch=EPOCH, fenced=False))
    return MetadataLoader(image=delta.apply(offset, 1))


def lifecycle(
    controller, loader=None, interval_ms=60_000, heartbeat_due=None, offline_log_dirs=list, on_replaced=lambda _: None
):
    """A broker that beats, by itself, once a minute: sooner only for a reason."""
    return BrokerLifecycle(
        1,
        "cluster",
        lambda: uuid.UUID(bytes=b"i" * 16),
        controller,
        loader or metadata(1),
        heartbeat_due=heartbeat_due or asyncio.Event(),
        offline_log_dirs=offline_log_dirs,
        on_replaced=on_replaced,
        heartbeat_interval_ms=interval_ms,
    )


async def register(broker):
    return await broker.register({}, {}, None, [b"d" * 16])


def refused(code):
    return BrokerRegistrationResponse(error_code=code)


async def test_it_waits_for_the_session_of_the_process_before():
    again = refused(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    controller = Controller([again, again, REGISTERED])
    assert await register(lifecycle(controller)) == EPOCH
    assert len(controller.requested) == 3
    assert len({request.incarnation_id for request in controller.requested}) == 1


@pytest.mark.parametrize("code", [ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.UNSUPPORTED_VERSION])
async def test_what_time_cannot_heal_ends_the_start(code):
    controller = Controller([refused(code)])
    with pytest.raises(KlammError) as caught:
        await register(lifecycle(controller))
    assert caught.value.code is code
    assert len(controller.requested) == 1


async def test_it_is_registered_once_its_own_metadata_says_so():
    """Before that, partitions it holds would look like strays."""
    loader = MetadataLoader()
    broker = lifecycle(Controller([REGISTERED]), loader)
    waiting = asyncio.ensure_future(register(broker))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    loader.load([RegisterBrokerRecord(broker_id=1, broker_epoch=EPOCH)], EPOCH, 1)
    assert await waiting == EPOCH


async def test_it_beats_until_it_is_let_in_whatever_comes_between():
    silent = KlammError(ErrorCode.REQUEST_TIMED_OUT, "no controller")
    controller = Controller([REGISTERED], [FENCED, silent, FENCED, RUNNING])
    broker = lifecycle(controller)
    await register(broker)
    await broker.become_ready()
    assert broker.state is BrokerState.RUNNING
    assert len(controller.beats()) == 4
    assert controller.beats()[0].current_metadata_offset == EPOCH
    await broker.stop()


async def test_it_beats_at_once_when_there_is_a_reason():
    controller = Controller([REGISTERED], [RUNNING])
    loader = metadata(1, 2)
    connection_lost = asyncio.Event()
    broker = lifecycle(controller, loader, heartbeat_due=connection_lost)
    await register(broker)
    await broker.become_ready()
    broker.on_leader_change(1, 1)
    await controller.beaten(2)
    connection_lost.set()
    await controller.beaten(3)
    stopping = BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=EPOCH, in_controlled_shutdown=1)
    loader.load([stopping], EPOCH + 1, 1)
    await controller.beaten(4)
    assert controller.beats()[3].current_metadata_offset == EPOCH + 1, "who stops waits for exactly this"
    await broker.stop()


async def test_a_broker_that_was_fenced_knows_and_comes_back():
    controller = Controller([REGISTERED], [RUNNING, FENCED, RUNNING])
    broker = lifecycle(controller)
    await register(broker)
    await broker.become_ready()
    broker.on_leader_change(1, 1)
    await controller.beaten(2)
    assert broker.state is BrokerState.FENCED
    broker.on_leader_change(1, 1)
    await controller.beaten(3)
    assert broker.state is BrokerState.RUNNING
    await broker.stop()


async def test_failed_directories_are_told():
    controller = Controller([REGISTERED], [RUNNING])
    broker = lifecycle(controller, offline_log_dirs=lambda: [b"d" * 16])
    await register(broker)
    await broker.become_ready()
    assert controller.beats()[0].offline_log_dirs == [b"d" * 16]
    await broker.stop()


async def test_it_leaves_when_its_leaders_have_moved():
    controller = Controller([REGISTERED], [RUNNING, RUNNING, RUNNING, MAY_STOP])
    broker = lifecycle(controller, metadata(1, 2))
    await register(broker)
    await broker.become_ready()
    await broker.leave()
    assert [beat.want_shut_down for beat in controller.beats()] == [False, True, True, True]
    assert broker.state is BrokerState.STOPPING


async def test_alone_it_just_goes():
    controller = Controller([REGISTERED], [RUNNING])
    broker = lifecycle(controller, metadata(1))
    await register(broker)
    await broker.become_ready()
    await broker.leave()
    assert not any(beat.want_shut_down for beat in controller.beats())


async def test_without_a_controller_it_goes_anyway():
    controller = Controller([REGISTERED], [RUNNING, KlammError(ErrorCode.REQUEST_TIMED_OUT, "no active controller")])
    broker = lifecycle(controller, metadata(1, 2))
    await register(broker)
    await broker.become_ready()
    await broker.leave()
    assert broker.state is BrokerState.STOPPING


async def test_it_notices_that_another_process_has_got_its_id():
    """Breaks when two processes lead the same partitions because both read of their id as leader."""
    loader = metadata(1)
    replaced = []
    broker = lifecycle(Controller([REGISTERED]), loader, on_replaced=replaced.append)
    await register(broker)
    loader.load([RegisterBrokerRecord(broker_id=2, broker_epoch=EPOCH + 1, incarnation_id=b"j" * 16)], EPOCH + 1, 1)
    loader.load([RegisterBrokerRecord(broker_id=1, broker_epoch=EPOCH, incarnation_id=b"i" * 16)], EPOCH + 2, 1)
    assert not replaced
    loader.load([RegisterBrokerRecord(broker_id=1, broker_epoch=EPOCH + 3, incarnation_id=b"j" * 16)], EPOCH + 3, 1)
    assert "broker 1" in str(replaced[0])
