"""A node asks another: answers find their questions, losses are told, refusals are recognised."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.model.errors import ErrorCode, KlammError
from klamm.net.peer import Peer, PeerGone, Peers
from klamm.protocol.apis import API_VERSIONS
from klamm.protocol.codec import decode, encode
from klamm.protocol.header import decode_request_header, encode_response_header
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from klamm.protocol.messages.vote import VoteRequest, VoteResponse

pytestmark = pytest.mark.asyncio


class Node:
    """A server that answers votes with the cluster id as its own leader id, slowly enough to be pending twice."""

    def __init__(self) -> None:
        self.held: list[tuple[asyncio.StreamWriter, bytes]] = []
        self.hold = False
        self.arrived = asyncio.Condition()
        self.version_requests = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(length)
                header, offset = decode_request_header(frame)
                if header.api_key == API_VERSIONS:
                    self.version_requests += 1
                    body = encode(
                        ApiVersionsResponse(api_keys=[ApiVersion(api_key=52, min_version=0, max_version=1)]),
                        header.api_version,
                    )
                else:
                    request, _ = decode(VoteRequest, header.api_version, frame, offset)
                    answer = VoteResponse(error_code=int(request.cluster_id or 0))
                    body = encode(answer, header.api_version)
                head = encode_response_header(header.correlation_id, header.api_key, header.api_version)
                reply = struct.pack(">i", len(head) + len(body)) + head + bytes(body)
                if self.hold and header.api_key != 18:
                    async with self.arrived:
                        self.held.append((writer, reply))
                        self.arrived.notify_all()
                else:
                    writer.write(reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def wait_for(self, count: int) -> None:
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.held) >= count)


@asynccontextmanager
async def serving(node: Node) -> AsyncIterator[int]:
    server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in node.writers:
            writer.close()


def a_peer(port: int, **settings: Any) -> Peer:
    return Peer(asyncio.get_running_loop(), "127.0.0.1", port, client_id="t", reconnect_backoff_ms=1, **settings)


async def test_pipelined_answers_find_their_questions() -> None:
    node = Node()
    async with serving(node) as port:
        peer = a_peer(port)
        answers = await asyncio.gather(*(peer.ask(VoteRequest(cluster_id=str(i)), 1) for i in range(50)))
        assert [answer.error_code for answer in answers] == list(range(50))
        assert len(node.writers) == 1, "one connection carries them all"
        peer.close()


async def test_versions_are_asked_once_per_connection() -> None:
    node = Node()
    async with serving(node) as port:
        peer = a_peer(port)
        await asyncio.gather(*(peer.ask(VoteRequest(cluster_id="3")) for _ in range(5)))
        await peer.ask(VoteRequest(cluster_id="3"))
        assert node.version_requests == 1
        peer.close()


async def test_an_answer_in_many_pieces_and_many_answers_in_one() -> None:
    node = Node()
    node.hold = True
    async with serving(node) as port:
        peer = a_peer(port)
        pending = [asyncio.ensure_future(peer.ask(VoteRequest(cluster_id=str(i)), 1)) for i in range(3)]
        await node.wait_for(3)
        stream = b"".join(reply for _, reply in node.held)
        writer = node.held[0][0]
        for at in range(len(stream) - 10):
            writer.write(stream[at : at + 1])
            await writer.drain()
        writer.write(stream[len(stream) - 10 :])
        assert [(await answer).error_code for answer in pending] == [0, 1, 2]
        peer.close()


async def test_a_lost_connection_fails_who_waits_and_the_next_request_connects_again() -> None:
    node = Node()
    node.hold = True
    async with serving(node) as port:
        losses: list[bool] = []
        peer = a_peer(port, on_closed=lambda: losses.append(peer.connected))
        pending = asyncio.ensure_future(peer.ask(VoteRequest(cluster_id="1"), 1))
        await node.wait_for(1)
        node.writers[0].close()
        with pytest.raises(PeerGone):
            await pending
        assert losses == [False]
        node.hold = False
        assert (await peer.ask(VoteRequest(cluster_id="2"), 1)).error_code == 2
        peer.close()
        assert losses == [False], "closing it oneself is no loss"


async def test_a_dead_process_refuses() -> None:
    async with serving(Node()) as port:
        pass
    peer = a_peer(port)
    with pytest.raises(PeerGone) as caught:
        await peer.ask(VoteRequest(cluster_id="1"), 1)
    assert caught.value.refused
    assert peer.refused
    peer.close()


async def test_a_name_with_several_addresses_refuses_when_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio tells of two failures in one OSError without a number of its own."""
    async with serving(Node()) as port:
        pass
    loop = asyncio.get_running_loop()
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.1", "127.0.0.2")]

    async def both(*_: object, **__: object) -> list[object]:
        return list(addresses)

    monkeypatch.setattr(loop, "getaddrinfo", both)
    peer = Peer(loop, "name.test", port, client_id="t")
    with pytest.raises(PeerGone) as caught:
        await peer.connect()
    assert caught.value.refused


async def test_no_answer_in_time_gives_the_connection_up() -> None:
    node = Node()
    node.hold = True
    async with serving(node) as port:
        peer = a_peer(port)
        with pytest.raises(KlammError) as caught:
            await peer.ask(VoteRequest(cluster_id="1"), 1, timeout_ms=20)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert not peer.connected
        peer.close()


async def test_peers_are_kept_by_node_and_replaced_when_their_address_moves() -> None:
    peers = Peers(asyncio.get_running_loop(), client_id="t")
    first = peers.get(1, "127.0.0.1", 1000)
    assert peers.get(1, "127.0.0.1", 1000) is first
    moved = peers.get(1, "127.0.0.1", 1001)
    assert moved is not first
    with pytest.raises(PeerGone):
        await first.connect()
    peers.forget(1)
    with pytest.raises(PeerGone):
        await moved.connect()
