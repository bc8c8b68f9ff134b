"""TLS in front of a plain broker: what a load balancer or a sidecar does."""

import asyncio
import contextlib
import ssl
import threading
from typing import Any, Self

from harness.serving import end_all, end_serving


class TlsProxy:
    """Takes TLS connections in a thread of its own and forwards their bytes to `target_port`."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.target_port = 0
        self._context = context
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)  # refused handshakes are what some tests want
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(end_serving(self._server, self._tasks), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def drop(self) -> None:
        """End every connection as it is."""
        asyncio.run_coroutine_threadsafe(end_all(self._tasks), self._loop).result(10)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        outs = [client_out]
        try:
            node_in, node_out = await asyncio.open_connection("127.0.0.1", self.target_port)
            outs.append(node_out)
            await asyncio.gather(_pump(client_in, node_out), _pump(node_in, client_out))
        except OSError:
            pass
        finally:
            self._tasks.discard(task)
            for out in outs:
                out.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.close()
