"""Decodes the request in a frame, calls its handler, encodes the response, and keeps replies in order.

Invalid bytes close the connection, as in Kafka, and so does an API or version that is not served, except ApiVersions,
which answers an unknown version in a form that every client can read. A request with more elements than its API allows
is answered with INVALID_REQUEST if the response has an error field. A large request is decoded, handled and answered
in slices (`slices`), between which other connections are served; later requests of its own connection wait.
"""

import asyncio
import struct
from collections.abc import Coroutine
from types import GeneratorType
from typing import Any

from klamm.model.errors import ElementLimitError, ErrorCode, ProtocolError, RemoteProtocolError
from klamm.net import Channel, Slot
from klamm.protocol.apis import API_VERSIONS, Api
from klamm.protocol.budget import elements_max
from klamm.protocol.codec import decode, decode_in_slices
from klamm.protocol.header import decode_request_header
from klamm.protocol.schema import declaration
from klamm.server.requests.access.quotas import run_metered
from klamm.server.requests.context import ANSWERED, ConnectionState, ListenerContext, RequestContext
from klamm.server.requests.failures import log_request_failed
from klamm.server.requests.replies import response_parts, response_parts_in_slices
from klamm.server.requests.routes import Route, quick_paths
from klamm.server.requests.slices import SliceSteps, run_slice
from klamm.server.services import Services
from klamm.telemetry.log import get_logger

log = get_logger("server")

_START = struct.Struct(">hhi")
_PRODUCE = 0
SLICED_BYTES_MIN = 128 * 1024
"""Larger requests are decoded in slices, except Produce, most of which is batches that are not decoded."""


class Router:
    """The frame handler of every listener of a node."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tasks: set[asyncio.Task[None]] = set()
        self.times = services.request_times
        """How long requests take, by API."""
        self._now = services.loop.time
        self.quick_paths = quick_paths()
        """By API key, without that of Produce."""
        # Produce comes first: it is recognised by the bytes of its header, before these are unpacked.
        self._quick_produce = self.quick_paths.pop(_PRODUCE)

    def handle(self, channel: Channel, view: memoryview, start: int, end: int) -> None:
        """Handle one request; the reply is sent now or later."""
        try:
            state = channel.state
            # The quick path of Produce recognises the requests of a connection by the bytes of earlier ones.
            if state is None:
                channel.state = ConnectionState()
            elif state.prefix_lengths and self._quick_produce(self._services.replicas, channel, view, start, end):
                return
            api_key, version, correlation_id = _START.unpack_from(view, start)
            quick = self.quick_paths.get(api_key)
            # Large requests are decoded in slices, which the quick paths do not do.
            # Nor do they measure what a client uses of its quotas.
            if quick is not None and end - start <= SLICED_BYTES_MIN and not self._services.quotas.active:
                listener: ListenerContext = channel.context  # type: ignore[assignment]
                if listener.kind == "broker" and quick(
                    self._services, channel, view, start, end, version, correlation_id
                ):
                    self.times.by_key[api_key].quick += 1
                    return
            times = channel.times = self.times.by_key.get(api_key)
            channel.request_began = began = self._now()
            self._dispatch(channel, view[start:end])
            channel.request_began = 0.0
            if times is not None:
                times.observe(channel.queue_seconds(began), self._now() - began)
        except ProtocolError as error:
            api_key, version, _ = _START.unpack_from(view, start)
            _close_refused(channel, api_key, version, error)
        except Exception as error:  # noqa: BLE001 - a bug in one handler must not take the others down
            api_key, version, _ = _START.unpack_from(view, start)
            log_request_failed(channel, api_key, version, error)
            channel.close("request failed")

    def on_closed(self, channel: Channel) -> None:
        """Cancel what waits for a connection that has ended, and call its close callbacks."""
        if channel.state is not None:
            # A copy: cancelling removes the request from the map.
            for request in list(channel.state.delayed):
                request.cancel()
            for callback in channel.state.on_close:
                callback()

    def _dispatch(self, channel: Channel, frame: memoryview) -> None:
        header, offset = decode_request_header(frame)
        listener: ListenerContext = channel.context  # type: ignore[assignment]
        route = listener.routes.get(header.api_key)
        context = RequestContext(
            channel, listener, header.api_key, header.api_version, header.correlation_id, header.client_id, frame
        )
        context.times = channel.times
        # As Kafka: there is no response format for an unknown API, so the connection is closed.
        if route is None:
            raise RemoteProtocolError(f"API {header.api_key} is not served on listener {listener.name}")
        api = route.api
        if not api.serves(header.api_version):
            if header.api_key == API_VERSIONS:
                self._refuse_api_versions(context, api)
                return
            raise RemoteProtocolError(f"{api.name} v{header.api_version} is not served")
        quotas = self._services.quotas
        if quotas.active and listener.kind == "broker":
            meter = context.meter = quotas.open_meter(context)
            if meter is not None:
                meter.resume()
                try:
                    self._decode(context, route, frame, offset)
                finally:
                    meter.pause()
                return
        self._decode(context, route, frame, offset)

    def _decode(self, context: RequestContext, route: Route, frame: memoryview, offset: int) -> None:
        """Decode a request and call its handler."""
        channel, api = context.channel, route.api
        # The connection is held while a task decodes: its next request must not overtake this one.
        if len(frame) > SLICED_BYTES_MIN and context.api_key != _PRODUCE:
            context.frame = memoryview(bytes(frame))  # the frame itself is valid only until the turn ends
            channel.hold()
            self._start_task(context, self._dispatch_in_slices(context, route, offset))
            return
        try:
            request, _ = decode(api.request, context.version, frame, offset, elements_max=elements_max(api.key))
        except ElementLimitError as error:
            self._refuse_elements(context, api, error)
            return
        result = route.handle(self._services, context, request)
        # The first slice runs here, so that a small request is answered in this turn without a task.
        if type(result) is GeneratorType:
            try:
                run_slice(result)
            except StopIteration as end:
                result = end.value
            else:
                context.frame = memoryview(b"")
                channel.hold()
                self._start_task(context, self._handle_in_slices(context, result))
                return
        self._finish(context, result)

    async def _handle_in_slices(self, context: RequestContext, steps: SliceSteps[Any]) -> None:
        """Run the remaining slices of a request."""
        try:
            await self._finish_in_slices(context, steps)
        except Exception as error:  # noqa: BLE001 - a bug in one handler must not take the others down
            self._fail(context, error)
        finally:
            context.channel.release()

    async def _finish_in_slices(self, context: RequestContext, steps: SliceSteps[Any]) -> None:
        channel = context.channel
        while True:
            await asyncio.sleep(0)
            # The client may have gone between two slices; the rest of the work would be for nothing.
            if channel.closed:
                return
            try:
                run_slice(steps)
            except StopIteration as end:
                response = end.value
                break
        if response is ANSWERED or asyncio.iscoroutine(response):
            self._finish(context, response)
            return
        parts = await response_parts_in_slices(context, response)
        if not channel.closed:
            channel.reply_parts(parts)

    async def _dispatch_in_slices(self, context: RequestContext, route: Route, offset: int) -> None:
        channel, api = context.channel, route.api
        try:
            slices = decode_in_slices(
                api.request, context.version, context.frame, offset, elements_max=elements_max(api.key)
            )
            while True:
                try:
                    next(slices)
                except StopIteration as end:
                    request, _ = end.value
                    break
                await asyncio.sleep(0)
                if channel.closed:
                    return
            result = route.handle(self._services, context, request)
            if type(result) is GeneratorType:
                await self._finish_in_slices(context, result)
            else:
                self._finish(context, result)
        except ElementLimitError as error:
            self._refuse_elements(context, api, error)
        except ProtocolError as error:
            _close_refused(channel, api.key, context.version, error)
        except Exception as error:  # noqa: BLE001 - a bug in one handler must not take the others down
            self._fail(context, error)
        finally:
            channel.release()

    def _fail(self, context: RequestContext, error: Exception) -> None:
        channel = context.channel
        log_request_failed(channel, context.api_key, context.version, error)
        channel.close("request failed")

    def _refuse_elements(self, context: RequestContext, api: Api, error: ElementLimitError) -> None:
        """Answer INVALID_REQUEST; close the connection if the response has no error field."""
        # Some responses have a top-level error in later versions only, some in none.
        fields = {field.name for field in declaration(api.response).fields if field.lives_in(context.version)}
        if "error_code" not in fields:
            _close_refused(context.channel, api.key, context.version, error)
            return
        log.warning(
            "request refused", peer=context.channel.peer_address, api_key=api.key, version=context.version, reason=error
        )
        response = api.response(error_code=ErrorCode.INVALID_REQUEST)
        if "error_message" in fields:
            response.error_message = f"{error} ({elements_max(api.key)})"
        context.channel.reply_parts(response_parts(context, response))

    def _finish(self, context: RequestContext, result: Any) -> None:
        if result is ANSWERED or result is None:
            return
        if asyncio.iscoroutine(result):
            # The slot is taken now: replies to later requests queue behind it.
            self._start_task(context, self._reply_later(context, context.channel.defer(), result))
            return
        context.channel.reply_parts(response_parts(context, result))

    def _start_task(self, context: RequestContext, work: Coroutine[Any, Any, None]) -> None:
        if context.meter is not None:
            work = run_metered(work, context.meter)
        task = self._services.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply_later(self, context: RequestContext, slot: Slot, work: Coroutine[Any, Any, Any]) -> None:
        try:
            response = await work
            parts = response_parts(context, response)
        except asyncio.CancelledError:
            slot.abandon()
            raise
        except Exception as error:  # noqa: BLE001 - a bug in one handler must not take the others down
            log_request_failed(context.channel, context.api_key, context.version, error)
            # Closes the connection: the replies behind this one would wait for ever.
            slot.abandon()
            return
        slot.send(parts)

    def _refuse_api_versions(self, context: RequestContext, api: Api) -> None:
        """Answer an unknown version without reading its body: a v0 response with the versions that are served."""
        entry = _api_version_entry(api)
        body = api.response(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[entry])
        # The client retries with a version from this response, whose form never changes.
        context.version = 0
        context.channel.reply_parts(response_parts(context, body))

    async def drain(self) -> None:
        """Wait for the requests that are being handled, for a few seconds at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)


def _close_refused(channel: Channel, api_key: int, version: int, error: ProtocolError) -> None:
    log.warning("request refused", peer=channel.peer_address, api_key=api_key, version=version, reason=error)
    channel.close("invalid request")


def _api_version_entry(api: Api) -> Any:
    from klamm.protocol.messages.api_versions import ApiVersion  # noqa: PLC0415 - needed for clients newer than this broker only

    first, last = api.advertised
    return ApiVersion(api_key=api.key, min_version=first, max_version=last)
