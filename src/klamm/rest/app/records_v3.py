"""Routes of v3 that produce: records one after another on one request, or a batch.

A stream has a reader, which parses and sends records as they arrive, and a writer, which answers them in order as they
are acknowledged. Between them is a queue of bounded length: a client that does not read its answers, or a cluster that
does not take records, stops the reader, and with it the client's socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from klamm.client.errors import KafkaError
from klamm.client.types import RecordMetadata
from klamm.http.messages import BodyStream, HttpResponse, json_response
from klamm.http.refusals import HttpRefusal
from klamm.http.router import PathRouter
from klamm.rest.app.cluster_routes import CLUSTER, add_v3, check_cluster
from klamm.rest.app.requests import RestRequest
from klamm.rest.clients import RestClients
from klamm.rest.core.consumer_requests import print_timestamp
from klamm.rest.core.embedded import encode_plain
from klamm.rest.core.fields import dump_json, parse_object
from klamm.rest.core.produce_v3 import RecordData, parse_batch, parse_record
from klamm.rest.core.record_stream import BadStream, RecordStream
from klamm.rest.core.refusals import bad_request, invalid_payload, refusal_of
from klamm.rest.producing import RecordProducer, SendOutcome
from klamm.rest.service import RestService
from klamm.telemetry import get_logger

_log = get_logger("rest")

_IN_FLIGHT_MAX: Final = 1000
"""Records of a stream that are sent and not answered yet."""
_ANSWERS_MAX: Final = 500
"""Answers that go into one chunk."""
_WHOLE_BYTES_MAX: Final = 1 << 20
"""Bodies of a declared length up to this are read whole, without the tasks of a stream."""


class SentRecord:
    """A record on its way, with what its answer says of key and value."""

    __slots__ = ("key", "outcome", "value")

    def __init__(self, outcome: SendOutcome, key: dict[str, Any] | None, value: dict[str, Any] | None) -> None:
        self.outcome = outcome
        self.key = key
        self.value = value


class RecordSender:
    """Sends the records of one request to one topic, and prints what became of them."""

    def __init__(self, clients: RestClients, producing: RecordProducer, topic: str, cluster_id: str) -> None:
        self._schemas = clients.schemas
        self._producing = producing
        self._topic = topic
        self._cluster_id = cluster_id

    async def send(self, fields: dict[str, Any]) -> SentRecord | HttpRefusal:
        """Parse, encode and buffer a record; returns why it cannot be sent."""
        try:
            record = parse_record(fields)
            key, key_fields = await self._encode("key", record.key)
            value, value_fields = await self._encode("value", record.value)
            if record.partition_id is not None:
                await self._producing.check_topic(self._topic, record.partition_id)
        except HttpRefusal as refusal:
            return refusal
        except KafkaError as error:
            return refusal_of(error)
        outcome = await self._producing.send(
            self._topic, key, value, record.partition_id, record.timestamp_ms, record.headers
        )
        return SentRecord(outcome, key_fields, value_fields)

    async def _encode(self, part: str, data: RecordData | None) -> tuple[bytes | None, dict[str, Any] | None]:
        if data is None:
            return None, None
        if data.needs_schema:
            return await self._schemas.encode_data(self._topic, part, data)
        assert data.embedded is not None
        encoded = encode_plain(data.embedded, data.data)
        return encoded, {"type": data.embedded.name, "size": 0 if encoded is None else len(encoded)}

    async def answer(self, record: SentRecord | HttpRefusal) -> bytes:
        """Return the line of a record, when it is acknowledged or has failed."""
        return dump_json(await self.answer_fields(record)) + b"\n"

    async def answer_fields(self, record: SentRecord | HttpRefusal) -> dict[str, Any]:
        """Return the fields of that line."""
        if isinstance(record, HttpRefusal):
            return {"error_code": record.error_code, "message": record.message}
        result = await self._producing.wait(record.outcome)
        if isinstance(result, KafkaError):
            refusal = refusal_of(result)
            return {"error_code": refusal.error_code, "message": refusal.message}
        return {"error_code": 200} | self._success_fields(result, record)

    def _success_fields(self, result: RecordMetadata, record: SentRecord) -> dict[str, Any]:
        fields = {
            "cluster_id": self._cluster_id,
            "topic_name": result.topic,
            "partition_id": result.partition,
            "offset": result.offset,
            "timestamp": print_timestamp(result.timestamp),
        }
        if record.key is not None:
            fields["key"] = record.key
        if record.value is not None:
            fields["value"] = record.value
        return fields


class RecordRoutes:
    """Produces records."""

    def __init__(self, service: RestService) -> None:
        self._service = service

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        records = f"{CLUSTER}/topics/{{topic_name}}/records"
        add_v3(router, "POST", records, self.produce, streams=True)
        add_v3(router, "POST", f"{records}:batch", self.produce_batch)

    async def _open(self, request: RestRequest) -> RecordSender:
        """Return the sender of a request; raises for a topic that does not exist."""
        topic = request.values["topic_name"]
        producing = await request.clients.open_producer()
        await producing.check_topic(topic)
        return RecordSender(request.clients, producing, topic, self._service.cluster_id)

    async def produce(self, request: RestRequest) -> HttpResponse:
        """POST .../records: JSON objects that follow one another; one answer each, in order."""
        check_cluster(self._service, request)
        body = request.stream
        assert body is not None
        if body.ended:
            raise invalid_payload("Request body is empty. Data is required.")
        sender = await self._open(request)
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) <= _WHOLE_BYTES_MAX:
            return HttpResponse(body=await self._produce_whole(sender, await body.read(_WHOLE_BYTES_MAX)))
        config = self._service.config
        if self._service.streams >= config.streams_max:
            raise HttpRefusal(42901, f"There are {config.streams_max} streams of records, and no more are allowed")
        body.idle_s = config.stream_idle_s
        return HttpResponse(chunks=self._answer_stream(sender, body))

    async def _produce_whole(self, sender: RecordSender, body: bytes) -> bytes:
        stream = RecordStream(self._service.config.record_bytes_max)
        records: list[dict[str, Any]] = []
        fault = None
        try:
            records += stream.feed(body)
            stream.finish()
        except BadStream as error:
            records += error.records
            fault = _refuse_stream(error)
        sent = [await sender.send(fields) for fields in records]
        if fault is not None:
            sent.append(fault)
        if not sent:
            raise invalid_payload("Request body is empty. Data is required.")
        return b"".join([await sender.answer(record) for record in sent])

    async def _answer_stream(self, sender: RecordSender, body: BodyStream) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[SentRecord | HttpRefusal | None] = asyncio.Queue(_IN_FLIGHT_MAX)
        self._service.streams += 1
        reading = asyncio.create_task(self._read_stream(sender, body, queue), name="record stream reader")
        try:
            record = await queue.get()
            while record is not None:
                answers = [await sender.answer(record)]
                answered = True
                # What is acknowledged already goes into the same chunk; the first that is not begins the next one.
                while answered and len(answers) < _ANSWERS_MAX and not queue.empty():
                    record = queue.get_nowait()
                    answered = record is not None and _is_done(record)
                    if record is not None and answered:
                        answers.append(await sender.answer(record))
                yield b"".join(answers)
                if answered:
                    record = await queue.get()
        finally:
            self._service.streams -= 1
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_stream(
        self, sender: RecordSender, body: BodyStream, queue: asyncio.Queue[SentRecord | HttpRefusal | None]
    ) -> None:
        stream = RecordStream(self._service.config.record_bytes_max)
        try:
            async with asyncio.timeout(self._service.config.stream_s):
                async for chunk in body:
                    for fields in stream.feed(chunk):
                        await queue.put(await sender.send(fields))
                stream.finish()
        except BadStream as error:
            for fields in error.records:
                await queue.put(await sender.send(fields))
            await queue.put(_refuse_stream(error))
        except TimeoutError:
            await queue.put(HttpRefusal(408, "The stream of records is idle or too old; begin another one"))
        except HttpRefusal as refusal:  # the client has disconnected
            await queue.put(refusal)
        except Exception as error:  # noqa: BLE001 - the writer must not wait for a reader that is gone
            _log.failure("record stream failed", error)
            await queue.put(HttpRefusal(50002, "Error in the rest; its log has the reason"))
        await queue.put(None)

    async def produce_batch(self, request: RestRequest) -> HttpResponse:
        """POST .../records:batch: at most ten records, with an answer for each under its id; 207."""
        check_cluster(self._service, request)
        entries = parse_batch(parse_object(request.body))
        sender = await self._open(request)
        sent = [(entry_id, await sender.send(fields)) for entry_id, fields in entries]
        successes, failures = [], []
        for entry_id, record in sent:
            fields = await sender.answer_fields(record)
            if fields["error_code"] == 200:
                del fields["error_code"]
                successes.append({"id": entry_id} | fields)
            else:
                failures.append({"id": entry_id} | fields)
        return json_response({"successes": successes, "failures": failures}, 207)


def _is_done(record: SentRecord | HttpRefusal) -> bool:
    return isinstance(record, HttpRefusal) or isinstance(record.outcome, KafkaError) or record.outcome.done()


def _refuse_stream(error: BadStream) -> HttpRefusal:
    return HttpRefusal(413, str(error)) if error.too_large else bad_request(str(error))
