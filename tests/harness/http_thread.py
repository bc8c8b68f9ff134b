"""An HTTP service in a thread of this process, for tests that need it ready and stop it by hand."""

import asyncio
import contextlib
import threading
from dataclasses import dataclass

from klamm.http.server import ServedApp, serve

START_S = 60


@dataclass
class ThreadedService:
    served: ServedApp
    loop: asyncio.AbstractEventLoop
    stopping: asyncio.Event
    thread: threading.Thread

    def stop(self):
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self.loop.call_soon_threadsafe(self.stopping.set)
        self.thread.join(START_S)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def serve_when_ready(make_served, name):
    """What `make_served` returns, served until the block ends or `stop` is called; errors of the start are raised."""
    ready, started, failures = threading.Event(), [], []

    def run():
        async def main():
            stopping = asyncio.Event()
            # On the loop of the service, which may need it.
            served = make_served()
            started.append((served, asyncio.get_running_loop(), stopping))
            await serve([served], ready.set, stopping)

        try:
            asyncio.run(main())
        except Exception as error:  # noqa: BLE001
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    assert ready.wait(START_S)
    if failures:
        raise failures[0]
    service = ThreadedService(*started[0], thread)
    try:
        yield service
    finally:
        service.stop()
        service.served.listening.close()
