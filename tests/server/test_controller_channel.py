"""The way to the active controller: found anew when it moves, given up at the deadline, never by a wrong answer.

The controllers here are sockets that answer as told; requests are read and answers written with Klamm's own codec.
"""

import asyncio
import contextlib
import struct
from types import SimpleNamespace

import pytest

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.apis import APIS
from klamm.protocol.codec import decode, encode
from klamm.protocol.header import decode_request_header, encode_response_header
from klamm.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from klamm.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from klamm.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from klamm.server.controller.channel import ControllerChannel, ForwardedClient, ForwardedResponse
from klamm.server.controller.runtime import CommittedResponse

pytestmark = pytest.mark.asyncio

PATIENCE_MS = 20_000


class FakeController:
    """Answers every request with what `answer(request)` returns; None closes the connection instead."""

    def __init__(self, answer):
        self.answer = answer
        self.requested = []
        self.serving = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for task, writer in self.serving:
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*(task for task, _ in self.serving), return_exceptions=True)
        await asyncio.sleep(0)

    async def _serve(self, reader, writer):
        self.serving.append((asyncio.current_task(), writer))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                header, start = decode_request_header(frame)
                request, _ = decode(APIS[header.api_key].request, header.api_version, frame, start)
                self.requested.append(request)
                response = self.answer(request)
                if asyncio.iscoroutine(response):
                    response = await response
                if response is None:
                    break
                head = encode_response_header(header.correlation_id, header.api_key, header.api_version)
                body = head + encode(response, header.api_version)
                writer.write(struct.pack(">i", len(body)) + body)
        writer.close()


class Quorum:
    """What a channel looks at of the quorum: who leads, and where members are reached."""

    def __init__(self, *ports):
        self.config = SimpleNamespace(node_id=0)
        self.leader = (None, 1)
        self.addresses = {i: ("127.0.0.1", port) for i, port in enumerate(ports, 1)}
        self.core = SimpleNamespace(voters=(1, 2, 3))

    def address(self, node_id):
        return self.addresses.get(node_id)


class OwnController:
    """The node's own controller, active when it has an answer."""

    def __init__(self):
        self.active = None
        self.requested = []

    async def ask(self, request, _version, _client=None):
        self.requested.append(request)
        return self.active(request)


@contextlib.contextmanager
def channel_to(quorum, own=None, **hooks):
    loop = asyncio.get_running_loop()
    channel = ControllerChannel(loop, quorum, own, purpose="test", address=quorum.address, **hooks)
    try:
        yield channel
    finally:
        channel.close()


BEAT = BrokerHeartbeatRequest(broker_id=1, broker_epoch=5)


def unfenced(_request):
    return BrokerHeartbeatResponse(is_fenced=False)


def not_me(_request):
    return BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER)


async def test_the_leader_of_the_quorum_is_asked():
    async with FakeController(unfenced) as one, FakeController(unfenced) as two:
        quorum = Quorum(one.port, two.port)
        quorum.leader = (2, 1)
        with channel_to(quorum) as channel:
            assert not (await channel.ask(BEAT, timeout_ms=PATIENCE_MS)).is_fenced
        assert (one.requested, two.requested) == ([], [BEAT])


async def test_a_leader_that_moves_is_asked_where_it_is_now():
    async with FakeController(unfenced) as one, FakeController(unfenced) as two:
        quorum = Quorum(one.port)
        quorum.leader = (7, 1)
        with channel_to(quorum) as channel:
            waiting = asyncio.create_task(channel.ask(BEAT, timeout_ms=PATIENCE_MS))
            await asyncio.sleep(0)
            quorum.addresses[7] = ("127.0.0.1", two.port)
            await waiting
            assert (len(one.requested), len(two.requested)) == (0, 1), "the leader was unknown at first"
            quorum.addresses[7] = ("127.0.0.1", one.port)
            await channel.ask(BEAT, timeout_ms=PATIENCE_MS)
            assert (len(one.requested), len(two.requested)) == (1, 1)


async def test_its_own_controller_is_asked_without_a_socket():
    own = OwnController()
    own.active = lambda _: CommittedResponse("an answer")
    with channel_to(Quorum(1), own) as channel:
        assert await channel.ask(BEAT, timeout_ms=PATIENCE_MS) == "an answer"


async def test_who_waits_asks_as_soon_as_there_is_a_leader():
    async with FakeController(unfenced) as one:
        quorum = Quorum(one.port)
        with channel_to(quorum) as channel:
            waiting = asyncio.ensure_future(channel.ask(BEAT, timeout_ms=PATIENCE_MS))
            await asyncio.sleep(0)
            quorum.leader = (1, 2)
            channel.on_leader_change()
            assert not (await waiting).is_fenced


async def test_a_controller_that_is_no_longer_active_is_left():
    quorum = Quorum()

    def step_back(request):
        quorum.leader = (2, 2)
        return not_me(request)

    async with FakeController(step_back) as one, FakeController(unfenced) as two:
        quorum.addresses = Quorum(one.port, two.port).addresses
        quorum.leader = (1, 1)
        with channel_to(quorum) as channel:
            assert not (await channel.ask(BEAT, timeout_ms=PATIENCE_MS)).is_fenced
        assert (len(one.requested), len(two.requested)) == (1, 1)


async def test_a_controller_that_dies_while_asked_is_left():
    quorum = Quorum()
    lost = []

    def die(_request):
        quorum.leader = (2, 2)

    async with FakeController(die) as one, FakeController(unfenced) as two:
        quorum.addresses = Quorum(one.port, two.port).addresses
        quorum.leader = (1, 1)
        with channel_to(quorum, on_lost=lambda: lost.append(1)) as channel:
            assert not (await channel.ask(BEAT, timeout_ms=PATIENCE_MS)).is_fenced
        assert lost == [1], "a heartbeat follows at once"


@pytest.mark.parametrize("answer", [not_me, None], ids=["no active controller", "no leader"])
async def test_without_an_active_controller_the_deadline_ends_it(answer):
    async with FakeController(answer) as one:
        quorum = Quorum(one.port)
        quorum.leader = (1 if answer else None, 1)
        with channel_to(quorum) as channel, pytest.raises(KlammError) as caught:
            await channel.ask(BEAT, timeout_ms=200)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


async def test_a_controller_that_hangs_does_not_outlast_the_deadline():
    async def hang(_request):
        await asyncio.Event().wait()

    async with FakeController(hang) as one:
        quorum = Quorum(one.port)
        quorum.leader = (1, 1)
        with channel_to(quorum) as channel, pytest.raises(KlammError) as caught:
            await channel.ask(BEAT, timeout_ms=200)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


async def test_its_own_controller_may_lose_the_quorum_and_is_not_waited_for():
    class Hanging(OwnController):
        async def ask(self, _request, _version, _client=None):
            await asyncio.Event().wait()

    own = Hanging()
    own.active = True
    with channel_to(Quorum(), own) as channel, pytest.raises(KlammError) as caught:
        await channel.ask(BEAT, timeout_ms=100)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


async def test_refusals_of_the_controller_are_answers():
    refusing = BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    async with FakeController(lambda _: refusing) as one:
        quorum = Quorum(one.port)
        quorum.leader = (1, 1)
        with channel_to(quorum) as channel:
            assert await channel.ask(BEAT, timeout_ms=PATIENCE_MS) == refusing
        assert len(one.requested) == 1, "one request"


CREATE = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)])
CREATED = CreateTopicsResponse(topics=[CreatableTopicResult(name="t", num_partitions=1, replication_factor=1)])


def sealed(response, offset=-1):
    head = encode_response_header(0, 19, 7)
    return ForwardedResponse(response_data=head + encode(response, 7), offset=offset)


async def test_requests_of_clients_travel_in_an_envelope():
    async with FakeController(lambda _: sealed(CREATED, 41)) as one:
        quorum = Quorum(one.port)
        quorum.leader = (1, 1)
        applied = []

        async def apply(offset):
            applied.append(offset)

        with channel_to(quorum, wait_applied=apply) as channel:
            client = ForwardedClient("some-client", b"\x0a\0\0\1")
            answer = await channel.ask(CREATE, 7, timeout_ms=PATIENCE_MS, client=client)
        assert answer.topics[0].name == "t"
        assert applied == [41], "the answer waits until this broker knows"
        envelope = one.requested[0]
        assert isinstance(envelope, EnvelopeRequest)
        assert envelope.client_host_address == b"\x0a\0\0\1"
        header, start = decode_request_header(envelope.request_data)
        assert (header.api_key, header.api_version, header.client_id) == (19, 7, "some-client")
        assert decode(CreateTopicsRequest, 7, envelope.request_data, start)[0] == CREATE


async def test_a_controller_that_tells_no_offset_is_understood():
    """Apache Kafka's own, for one."""
    head = encode_response_header(0, 19, 7)
    plain = EnvelopeResponse(response_data=head + encode(CREATED, 7))
    async with FakeController(lambda _: plain) as one:
        quorum = Quorum(one.port)
        quorum.leader = (1, 1)
        with channel_to(quorum) as channel:
            assert (await channel.ask(CREATE, 7, timeout_ms=PATIENCE_MS)).topics[0].name == "t"


async def test_an_envelope_is_sent_on_to_who_is_active_now():
    answers = iter([ForwardedResponse(error_code=ErrorCode.NOT_CONTROLLER), sealed(CREATED)])
    async with FakeController(lambda _: next(answers)) as one:
        quorum = Quorum(one.port)
        quorum.leader = (1, 1)
        with channel_to(quorum) as channel:
            assert (await channel.ask(CREATE, 7, timeout_ms=PATIENCE_MS)).topics[0].name == "t"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ForwardedResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (ForwardedResponse(), ErrorCode.UNKNOWN_SERVER_ERROR),
        (ForwardedResponse(response_data=b"\0\0"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
    ids=["refused", "nothing inside", "nonsense inside"],
)
async def test_envelopes_that_bring_no_answer(answer, code):
    async with FakeController(lambda _: answer) as one:
        quorum = Quorum(one.port)
        quorum.leader = (1, 1)
        with channel_to(quorum) as channel, pytest.raises(KlammError) as caught:
            await channel.ask(CREATE, 7, timeout_ms=PATIENCE_MS)
    assert caught.value.code is code


async def test_a_broker_that_is_slow_to_follow_still_answers():
    own = OwnController()
    own.active = lambda _: CommittedResponse("an answer", 7)
    with channel_to(Quorum(), own, wait_applied=lambda _: asyncio.Event().wait()) as channel:
        assert await channel.ask(BEAT, timeout_ms=100) == "an answer", "what is decided is decided"
