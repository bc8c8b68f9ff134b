"""A console that serves on a free port, from a thread of the test."""

import asyncio
import re
import threading

import httpx2

from klamm.console.service import ConsoleService
from klamm.http.binding import bind
from klamm.http.server import ServedApp, serve

START_S = 60


class ServedConsole:
    """Runs a console until the block ends."""

    def __init__(self, config):
        self._config = config
        self._ready = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)
        self.service = None

    def __enter__(self):
        self._listening = bind("127.0.0.1", 0)
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread.start()
        assert self._ready.wait(START_S)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(START_S)

    def _run(self):
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised in the test
            self._failure = error
            self._ready.set()

    async def _serve(self):
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.service = ConsoleService(self._config)
        await serve([ServedApp(self.service.app, self.service, self._listening)], self._ready.set, self._stopping)

    def collect(self, name="test", timeout_s=START_S):
        """Wait for a sample that shows what was done before."""
        asyncio.run_coroutine_threadsafe(self.service.refresh(name), self._loop).result(timeout_s)

    def visitor(self):
        """A browser without scripts."""
        return Visit(self.url)


class Visit:
    """Pages and forms of one session."""

    def __init__(self, url):
        self.client = httpx2.Client(base_url=url, follow_redirects=True, timeout=60)

    def get(self, path, status=200, **options):
        response = self.client.get(path, **options)
        assert response.status_code == status, f"{path}: {response.status_code}\n{response.text}"
        return response.text

    def post(self, page, path, status=200, **fields):
        """Send a form with the token of a page, and return the page that follows."""
        response = self.client.post(path, data={"_token": self.token(page), **fields})
        assert response.status_code == status, f"{path}: {response.status_code}\n{response.text}"
        return response.text

    def plan(self, page):
        """The hash of the plan that a page shows."""
        text = self.get(page)
        match = re.search(r'name="plan" value="([0-9a-f]{64})"', text)
        assert match, f"{page} has no plan\n{text}"
        return match[1]

    def token(self, page):
        match = re.search(r'name="_token" value="([^"]+)"', self.client.get(page).text)
        assert match, f"{page} has no form"
        return match[1]
