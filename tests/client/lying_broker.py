"""A broker that says whatever a test wants: answers by API, or bytes that are none."""

import asyncio
import struct
import threading
from collections.abc import Callable
from typing import Any, Self

from harness.serving import end_serving
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import APIS, BY_NAME
from klamm.protocol.codec import decode, encode
from klamm.protocol.header import decode_request_header, encode_response_header
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from klamm.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC_ID = b"lying-topic-id!!"
Answer = Callable[[Any, int], Any]
"""Request and version -> a response, raw bytes to send instead of a frame, or None for silence."""


class LyingBroker:
    """Listens in a thread of its own; `answers` by the name of the API."""

    def __init__(self, answers: dict[str, Answer] | None = None, partitions: int = 1) -> None:
        self.partitions = partitions
        self.requests: list[str] = []
        self.answers: dict[str, Answer] = {
            "ApiVersions": lambda _request, version: api_versions(version),
            "Metadata": self.metadata,
            **(answers or {}),
        }
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result(10)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(end_serving(self._server, self._tasks), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def metadata(self, request: Any, _version: int) -> MetadataResponse:
        topics = [
            MetadataResponseTopic(
                error_code=ErrorCode.NONE,
                name=topic.name,
                topic_id=TOPIC_ID,
                partitions=[
                    MetadataResponsePartition(
                        error_code=ErrorCode.NONE,
                        partition_index=index,
                        leader_id=1,
                        leader_epoch=0,
                        replica_nodes=[1],
                        isr_nodes=[1],
                    )
                    for index in range(self.partitions)
                ],
            )
            for topic in request.topics or ()
        ]
        brokers = [MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)]
        return MetadataResponse(brokers=brokers, controller_id=1, topics=topics)

    async def _serve(self, incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                (size,) = struct.unpack(">i", await incoming.readexactly(4))
                frame = await incoming.readexactly(size)
                header, start = decode_request_header(frame)
                api = APIS[header.api_key]
                self.requests.append(api.name)
                request, _ = decode(api.request, header.api_version, frame, start)
                answer = self.answers[api.name](request, header.api_version)
                if answer is None:
                    continue
                if isinstance(answer, bytes):
                    outgoing.write(answer)
                else:
                    head = encode_response_header(header.correlation_id, header.api_key, header.api_version)
                    body = head + encode(answer, header.api_version)
                    outgoing.write(struct.pack(">i", len(body)) + body)
                await outgoing.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            outgoing.transport.abort()


def api_versions(_version: int) -> ApiVersionsResponse:
    keys = [
        ApiVersion(api_key=api.key, min_version=api.versions[0], max_version=api.versions[1])
        for api in BY_NAME.values()
    ]
    return ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=keys)
