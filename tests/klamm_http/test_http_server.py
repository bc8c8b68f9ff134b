"""The server around an application: its limit of connections."""

import asyncio
import contextlib

from klamm.http.app import HttpApp
from klamm.http.binding import bind
from klamm.http.messages import json_response
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


@contextlib.asynccontextmanager
async def serving():
    """An application with a small limit; yields its port."""
    app = HttpApp("small")
    app.router.add("GET", "/", answer)
    ready, stopping = asyncio.Event(), asyncio.Event()
    with bind("127.0.0.1", 0) as listening:
        served = ServedApp(app, NoService(), listening, connections_max=CONNECTIONS_MAX)
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
