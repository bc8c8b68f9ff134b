"""Changes: decided here if this registry leads, forwarded to the leader otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

from klamm.http.messages import Answered, HttpResponse
from klamm.registry.app.requests import FORWARDED, RegistryRequest
from klamm.registry.service import NotLeading, RegistryService
from klamm.registry.store import RegistryDecision
from klamm.registry.store.election import RegistryIdentity
from klamm.registry.store.refusals import RegistryRefusal

_LEADER_WAIT_S: Final = 15.0
"""How long a change waits for a registry that leads: longer than the session of a dead one, which is 10 s in others."""
_NO_LEADER: Final = 50004
_FORWARDS_MAX: Final = 64
"""Threads that wait for the leader; more forwards queue."""
_ANSWER_BYTES_MAX: Final = 16 << 20
_CARRIED: Final = ("accept", "authorization", "content-type", "confluent-accept-unknown-properties", "user-agent")
"""Headers that go to the leader: the caller's credentials among them."""


class Changes:
    """Performs changes of requests."""

    def __init__(self, service: RegistryService, tls: ssl.SSLContext | None = None) -> None:
        self._service = service
        self._tls = tls
        # Threads of their own: a leader that hangs must not take those that check logins.
        self._threads = ThreadPoolExecutor(_FORWARDS_MAX, thread_name_prefix="klamm-forward")

    async def perform(self, request: RegistryRequest, decide: Callable[[], RegistryDecision]) -> Any:
        """Return the answer of a decision once it is written; raises Answered with the answer of the leader."""
        service, loop = self._service, asyncio.get_running_loop()
        deadline = loop.time() + _LEADER_WAIT_S
        while True:
            leader = await service.wait_leader(deadline, settled=request.is_forwarded)
            elections = service.counts.elections
            if service.is_leading():
                with contextlib.suppress(NotLeading):
                    return await service.write(decide)
            elif request.is_forwarded:
                # Two registries that each take the other for the leader would send it to and fro.
                raise RegistryRefusal(_NO_LEADER, "A forwarded request reached a registry that does not lead")
            else:
                response = await self._forward(request, leader)
                if response is not None:
                    if response.status < 300:
                        # Clients look up at once what they have registered, at the same address.
                        await service.read_own_write()
                    raise Answered(response)
                await service.wait_election(elections, deadline)
            if loop.time() >= deadline:
                raise RegistryRefusal(_NO_LEADER, "No registry leads at the moment")

    async def _forward(self, request: RegistryRequest, leader: RegistryIdentity) -> HttpResponse | None:
        """Return the leader's answer; None if it leads no more and has done nothing, so that it may be sent again."""
        self._service.counts.forwarded += 1
        loop = asyncio.get_running_loop()
        try:
            response = await loop.run_in_executor(self._threads, self._send, request, leader)
        except ConnectionRefusedError:
            # It has stopped, and the group elects another.
            return None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RegistryRefusal(50003, f"Forwarding to the leader {leader.url} failed: {error}") from None
        return None if _read_error_code(response) == _NO_LEADER else response

    def _send(self, request: RegistryRequest, leader: RegistryIdentity) -> HttpResponse:
        headers = {name: request.headers[name] for name in _CARRIED if name in request.headers}
        headers[FORWARDED] = "true"
        host = urlsplit(leader.url)
        timeout_s = self._service.config.write_timeout_s + 5
        if leader.scheme == "https":
            context = self._tls or ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host.hostname or "", leader.port, timeout=timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(host.hostname or "", leader.port, timeout=timeout_s)
        try:
            connection.request(request.method, request.target, request.body or None, headers)
            answer = connection.getresponse()
            body = answer.read(_ANSWER_BYTES_MAX + 1)
            if len(body) > _ANSWER_BYTES_MAX:
                raise ValueError(f"its answer is longer than {_ANSWER_BYTES_MAX} bytes")
            if answer.length:
                # http.client does not raise this for reads with a limit.
                raise http.client.IncompleteRead(body, answer.length)
            return HttpResponse(answer.status, body, answer.headers.get("content-type", ""))
        finally:
            connection.close()


def _read_error_code(response: HttpResponse) -> int | None:
    if response.status < 500:
        return None
    try:
        code = json.loads(response.body)["error_code"]
    except (ValueError, LookupError, TypeError):
        # Not of a registry: of a proxy in front of it.
        return None
    return code if isinstance(code, int) else None
