"""HTTP connections with limits, which uvicorn does not have, and with the certificate that a client has presented.

| a client that | |
|---|---|
| sends nothing, or the head of a request byte by byte | is disconnected after `head_s` |
| sends a head without end | is answered 400 after HEAD_BYTES_MAX, behind the answers of the requests before |
| does not read its answer | is disconnected when nothing was taken for `stall_s` |
| opens connections without requests | is disconnected at once behind twice `limit_concurrency` |

Up to `limit_concurrency` connections have their requests answered, and as many again are answered 503: uvicorn refuses
them by their first request.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from klamm.http.app import CERTIFICATE

HEAD_BYTES_MAX: Final = 64 << 10
"""Without the piece of data in which the head began: what else is in it belongs to the request before."""


class HttpConnection(HttpToolsProtocol):  # type: ignore[misc]  # an extra, whose types are not read
    """uvicorn's protocol, which reads the certificate once for a connection and closes it at its limits."""

    def __init__(self, *arguments: Any, head_s: float, stall_s: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_s = head_s
        self._stall_s = stall_s
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._in_head = False
        self._head_bytes = 0
        self._refusal: str | None = None
        """Why the next request is refused, while the one before is not answered yet."""
        self._certificate: bytes | None = None

    # Calls of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Read the certificate, as the handshake is over, and wait for a request."""
        super().connection_made(transport)
        if len(self.connections) > 2 * self.limit_concurrency:
            transport.abort()
            return
        tls: Any = transport.get_extra_info("ssl_object")
        self._certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Parse, and begin or end the wait for the rest of a head."""
        # Before it is parsed: a head that begins in it counts from 0.
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all timers."""
        super().connection_lost(exc)
        self._end_head_timer()
        self._end_stall_timer()

    def pause_writing(self) -> None:
        """Watch whether the client reads."""
        super().pause_writing()
        if self._stall_timer is None:
            self._watch_reader()

    def resume_writing(self) -> None:
        """The client reads."""
        super().resume_writing()
        self._end_stall_timer()

    # Calls of the parser

    def on_message_begin(self) -> None:
        """Add the certificate to the scope that the next request has."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        if self._certificate is not None:
            self.scope[CERTIFICATE] = self._certificate

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._in_head = False
        super().on_headers_complete()

    # Calls of the requests

    def send_400_response(self, msg: str) -> None:
        """Refuse what was sent, behind the answers of the requests before: a client takes answers in their order."""
        if self._is_answering():
            self._refusal = msg
            self.flow.pause_reading()
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """Send the refusal that has waited for this answer, or for those behind it."""
        super().on_response_complete()
        if self._refusal is not None and not self.transport.is_closing():
            self.send_400_response(self._refusal)

    def _is_answering(self) -> bool:
        if self.pipeline:
            return True
        # A request whose body is broken is itself refused.
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    # Limits

    def _watch_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_head_timer()
        # Between requests uvicorn's own limit holds, until a byte arrives. Further bytes do not begin anew.
        elif self._head_timer is None and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self._head_s, self._close_idle)

    def _end_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _close_idle(self) -> None:
        self._head_timer = None
        self.transport.close()

    def _watch_reader(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self._stall_s, self._check_reader)

    def _check_reader(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent_bytes:
            self._watch_reader()
        else:
            # Not `close`, which would wait until the client has read the rest.
            self.transport.abort()
