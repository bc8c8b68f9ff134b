"""The server around an application: its limits for connections, and for clients that do not send or read."""

import asyncio
import contextlib
import re
import socket

import pytest

from klamm.http.app import HttpApp
from klamm.http.binding import bind
from klamm.http.connection import HEAD_BYTES_MAX
from klamm.http.messages import HttpResponse, json_response
from klamm.http.server import ServedApp, serve

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
CONNECTIONS_MAX = 4
LIMIT_S = 30


class NoService:
    async def start(self):
        pass

    async def stop(self):
        pass


async def answer(_):
    return json_response({})


class EndlessAnswer:
    """A route whose answer has no end, and how much of it was taken."""

    chunk = b"x" * (1 << 16)

    def __init__(self):
        self.sent = 0
        self.ended = asyncio.Event()

    async def answer(self, _):
        return HttpResponse(chunks=self._produce())

    async def _produce(self):
        try:
            while True:
                yield self.chunk
                self.sent += len(self.chunk)
        finally:
            self.ended.set()


@contextlib.asynccontextmanager
async def serving(endpoint=answer, method="GET", **limits):
    """An application with small limits; yields its port."""
    app = HttpApp("small")
    app.router.add(method, "/", endpoint)
    ready, stopping = asyncio.Event(), asyncio.Event()
    with bind("127.0.0.1", 0) as listening:
        served = ServedApp(app, NoService(), listening, **{"connections_max": CONNECTIONS_MAX, **limits})
        task = asyncio.create_task(serve([served], ready.set, stopping))
        await asyncio.wait_for(ready.wait(), LIMIT_S)
        try:
            yield listening.getsockname()[1]
        finally:
            stopping.set()
            await task


async def ask(reader, writer):
    """Send a request on a connection that stays open, and return the status."""
    writer.write(REQUEST)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    await reader.readexactly(length)
    return int(head.split()[1])


def test_more_connections_than_the_limit_are_refused_until_others_close():
    async def run():
        async with serving() as port:
            connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX - 1)]
            assert [await ask(*connection) for connection in connections] == [200] * (CONNECTIONS_MAX - 1)
            extra = await asyncio.open_connection("127.0.0.1", port)
            reader, writer = extra
            writer.write(REQUEST)
            assert (await asyncio.wait_for(reader.readline(), LIMIT_S)).split()[1] == b"503"
            writer.close()
            # The others go on, and a place that is free is given again.
            async with asyncio.timeout(LIMIT_S):
                while await ask(*connections[0]) != 200:
                    pass
            connections.pop()[1].close()
            async with asyncio.timeout(LIMIT_S):
                while True:
                    connection = await asyncio.open_connection("127.0.0.1", port)
                    try:
                        if await ask(*connection) == 200:
                            break
                    except (OSError, asyncio.IncompleteReadError, StopIteration):
                        continue
                    finally:
                        connection[1].close()
            for _, other in connections:
                other.close()

    asyncio.run(run())


async def read_to_end(reader):
    """Return what comes until the server closes the connection."""
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), LIMIT_S)
    return b""


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET", REQUEST[:-2], b"GET / HTTP/1.1\r\nHost: loc"])
def test_a_connection_without_a_whole_head_is_closed(sent):
    async def run():
        async with serving(head_s=0.2) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert await read_to_end(reader) == b""
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("sent", [b"\r\n", b"GET / HTTP"])
def test_a_head_that_stays_unfinished_behind_a_request_is_closed(sent):
    async def run():
        async with serving(head_s=0.2) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await ask(reader, writer) == 200
            writer.write(sent)
            assert await read_to_end(reader) == b""
            writer.close()

    asyncio.run(run())


def test_bytes_of_a_head_do_not_extend_its_time():
    async def run():
        async with serving(head_s=0.5) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nX: ")
            ending = asyncio.create_task(read_to_end(reader))
            async with asyncio.timeout(LIMIT_S):
                # The bytes come closer together than the limit.
                while not ending.done():
                    writer.write(b"x")
                    await asyncio.wait((ending,), timeout=0.05)
            writer.close()

    asyncio.run(run())


def test_a_request_may_take_longer_than_its_head():
    """The limit ends with the head, and the time between two requests has its own."""

    async def run():
        released = asyncio.Event()

        async def answer_late(_):
            await released.wait()
            return json_response({})

        async with serving(answer_late, head_s=0.2) as port:
            idle = await asyncio.open_connection("127.0.0.1", port)
            connection = await asyncio.open_connection("127.0.0.1", port)
            asking = asyncio.create_task(ask(*connection))
            assert await read_to_end(idle[0]) == b"", "the limit has passed"
            released.set()
            assert await asking == 200
            second = await asyncio.open_connection("127.0.0.1", port)
            assert await read_to_end(second[0]) == b""
            assert await ask(*connection) == 200
            for _, writer in (idle, connection, second):
                writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("begin", [b"", REQUEST])
def test_a_head_without_end_is_refused(begin):
    async def run():
        async with serving() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begin + b"GET / HTTP/1.1\r\nX: ")
            ending = asyncio.create_task(read_to_end(reader))
            sent = 0
            with contextlib.suppress(OSError):
                while not ending.done() and sent < 64 << 20:
                    writer.write(b"x" * 65536)
                    sent += 65536
                    await writer.drain()
            await ending
            assert sent < 64 << 20
            writer.close()

    asyncio.run(run())


@contextlib.asynccontextmanager
async def posting(endpoint):
    """A server that takes POST, and a connection to it."""
    async with serving(endpoint, method="POST") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.close()


async def read_answer(reader):
    """Return the status and the body of one answer."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
    length = re.search(rb"content-length: (\d+)", head.lower())
    return int(head.split()[1]), await reader.readexactly(int(length[1]))


def make_post(size):
    return b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size


def test_the_end_of_a_body_is_no_part_of_the_next_head():
    async def run():
        async with posting(answer) as (reader, writer):
            request, half = make_post(1 << 20), 20
            writer.write(request[:half])
            for _ in range(10):
                writer.write(request[half:] + request[:half])
                assert await read_answer(reader) == (200, b"{}")

    asyncio.run(run())


@pytest.mark.parametrize(
    "behind",
    # No more than is refused: a close with bytes that were not read would take back the answers.
    [(b"GET / HTTP/1.1\r\nX: ", b"x" * (HEAD_BYTES_MAX + 1)), (b"nonsense\r\n\r\n",)],
    ids=["long", "nonsense"],
)
def test_a_request_is_refused_behind_the_answers_of_those_before(behind):
    async def run():
        released = asyncio.Event()
        requests = []

        async def answer_late(request):
            requests.append(request)
            await released.wait()
            return json_response({"request": len(requests)})

        async with posting(answer_late) as (reader, writer):
            writer.write(make_post(3) + make_post(3))
            other = await asyncio.open_connection(*writer.get_extra_info("peername"))
            for piece in behind:
                writer.write(piece)
                for _ in range(10):  # the server reads of every connection meanwhile
                    assert await ask(*other) == 405
            other[1].close()
            released.set()
            assert [await read_answer(reader) for _ in range(2)] == [(200, b'{"request":1}'), (200, b'{"request":2}')]
            assert (await read_answer(reader))[0] == 400
            assert await read_to_end(reader) == b""

    asyncio.run(run())


def test_connections_without_requests_are_bounded():
    async def run():
        async with serving() as port:
            connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * CONNECTIONS_MAX)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await read_to_end(reader) == b""
            assert not any(idle.at_eof() for idle, _ in connections)
            for _, other in (*connections, (reader, writer)):
                other.close()

    asyncio.run(run())


def test_a_client_that_does_not_read_is_disconnected():
    async def run():
        endless = EndlessAnswer()
        async with serving(endless.answer, stall_s=0.3) as port:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(REQUEST)
                await asyncio.wait_for(endless.ended.wait(), LIMIT_S)
                # What the buffers of both sockets take, and no more.
                assert endless.sent < 64 << 20

    asyncio.run(run())


def test_a_client_that_reads_slowly_is_served():
    async def run():
        endless = EndlessAnswer()
        async with serving(endless.answer, stall_s=1.0) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
            writer.write(REQUEST)
            # More than all buffers have, in pieces, so that it goes on only if the server goes on.
            for _ in range(64):
                await asyncio.wait_for(reader.readexactly(1 << 20), LIMIT_S)
            assert not endless.ended.is_set()
            writer.close()
            await asyncio.wait_for(endless.ended.wait(), LIMIT_S)

    asyncio.run(run())
