"""Publishes the status of a run to the cluster, and takes requests to it from there.

Requests become files in the pipeline's folder, as those of a command on its machine; their answers are in the next
status. Without the rights, or without the cluster, the files of the machine work as before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from klamm.client import Admin, AuthorizationError, Consumer, Producer
from klamm.client.config import ADMIN_CONFIGS, CONSUMER_CONFIGS, PRODUCER_CONFIGS
from klamm.client.errors import TopicAlreadyExistsError
from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.published_status import (
    REQUESTS_TOPIC,
    STATUS_TOPIC,
    STOP,
    TOPIC_CONFIGS,
    PipelineRequest,
    PublishedStatus,
    without_clocks,
)
from klamm.pipeline.sql.pipeline_registry import PipelineRegistry
from klamm.pipeline.sql.status import ControlAction, Home

_log = logging.getLogger(__name__)
PUBLISH_S: Final = 3.0
"""The shortest time between two statuses; states and answers are published at once."""
REPEAT_S: Final = 60.0
"""After so long a status is published again without a change: an old run may have written one since."""
_POLL_S: Final = 0.25
_RETRY_S: Final = 30.0
_DELIVERY_S: Final = 10.0
_CLOSE_S: Final = 15.0
_ANSWERS_KEPT: Final = 20
_REQUESTS: Final = TopicPartition(REQUESTS_TOPIC, 0)


@dataclass(frozen=True, slots=True)
class RunPlace:
    """One run of a pipeline: of which, by which lease, in which folder."""

    identity: QueryIdentity
    run: str
    folder: str


class ClusterControl:
    """Publishes and takes requests in a thread, so that a cluster that does not answer holds up no query."""

    def __init__(
        self, registry: PipelineRegistry, place: RunPlace, home: Home, read_status: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._registry = registry
        self._place = place
        self._home = home
        self._read_status = read_status
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="klamm-pipeline-control", daemon=True)
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._position: int | None = None
        """The offset of the next request; None before the first connection."""
        self._waiting: dict[str, str] = {}
        """Ids of requests by the names of their files, without an answer yet."""
        self._answers: deque[tuple[str, str]] = deque(maxlen=_ANSWERS_KEPT)
        self._published: tuple[Any, ...] = ()
        self._published_s = float("-inf")
        self._is_logged = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        # Bounded: the last status may wait for brokers that do not answer, and the thread is a daemon.
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while True:
            try:
                with ExitStack() as stack:
                    self._connect(stack)
                    while not self._ended.is_set():
                        self._take_requests()
                        self._publish_if_due()
                    self._publish_last()
            except Exception as error:  # noqa: BLE001 - the run goes on without it
                self._log_once(error)
            else:
                return
            if self._ended.wait(_RETRY_S):
                return

    def _log_once(self, error: Exception) -> None:
        # One line for a right that is missing, not one for each attempt.
        level = logging.DEBUG if self._is_logged else logging.WARNING
        self._is_logged = True
        name = self._place.identity.name
        _log.log(level, "status not published to the cluster, only to files pipeline=%s: %s", name, error)

    def _connect(self, stack: ExitStack) -> None:
        self._producer = self._consumer = None
        with Admin(self._registry.settings(ADMIN_CONFIGS)) as admin:
            topics = _ensure_topics(admin)
        if STATUS_TOPIC not in topics:
            raise ConfigError(f"the topic {STATUS_TOPIC} is not there, or may not be seen")
        delivery_ms = str(round(1000 * _DELIVERY_S))
        waits = {"delivery_timeout_ms": delivery_ms, "request_timeout_ms": delivery_ms, "max_block_ms": delivery_ms}
        settings = self._registry.settings(PRODUCER_CONFIGS, compression_type="gzip", linger_ms="0", **waits)
        self._producer = stack.enter_context(Producer(settings))
        if REQUESTS_TOPIC in topics:
            settings = self._registry.settings(CONSUMER_CONFIGS, enable_auto_commit="false")
            consumer = stack.enter_context(Consumer(settings))
            with suppress(AuthorizationError):
                self._start_at_end(consumer)
                self._consumer = consumer

    def _start_at_end(self, consumer: Consumer) -> None:
        """Set where requests are read from: those for this run are written after its first status."""
        end = consumer.end_offsets([_REQUESTS])[_REQUESTS]
        # A smaller end is that of a topic that was made anew.
        self._position = end if self._position is None else min(self._position, end)
        consumer.assign([_REQUESTS])
        consumer.seek(_REQUESTS, self._position)

    def _take_requests(self) -> None:
        if self._consumer is None:
            self._ended.wait(_POLL_S)
            return
        try:
            records = self._consumer.poll(_POLL_S)
        except AuthorizationError as error:
            self._consumer = None
            _log.warning("no requests from the cluster pipeline=%s: %s", self._place.identity.name, error)
            return
        for record in records:
            self._position = record.offset + 1
            if record.key == self._place.identity.name.encode() and record.value is not None:
                request = PipelineRequest.decode(record.value)
                # One for another run is too late, whatever it is.
                if request is not None and request.run == self._place.run:
                    self._obey(request)

    def _obey(self, request: PipelineRequest) -> None:
        _log.info("request from the cluster action=%s query=%s id=%s", request.action, request.query, request.id)
        if request.is_old(_now_ms()):
            self._answers.append((request.id, "the request was too old when it was read: send it again"))
        elif request.action == STOP:
            self._answers.append((request.id, ""))
            self._home.request_stop()
        else:
            file_name = self._home.send_request(ControlAction(request.action), request.query)
            self._waiting[file_name] = request.id

    def _publish_if_due(self) -> None:
        status = self._status()
        if not status:
            return
        waited_s = time.monotonic() - self._published_s
        urgent = (_states(status), tuple(status["requests"].items()), self._consumer is not None)
        content = (urgent, without_clocks(status))
        is_urgent = not self._published or urgent != self._published[0]
        is_due = waited_s >= REPEAT_S or (waited_s >= PUBLISH_S and content != self._published)
        if is_urgent or is_due:
            self._publish(status, content)

    def _publish(self, status: Mapping[str, Any], content: tuple[Any, ...]) -> None:
        assert self._producer is not None
        place = self._place
        takes_requests = self._consumer is not None
        value = PublishedStatus(
            place.identity.id, place.run, self._registry.host, place.folder, takes_requests, status
        ).encode()
        sent = self._producer.send(STATUS_TOPIC, value, key=place.identity.name.encode(), partition=0)
        sent.result(2 * _DELIVERY_S)
        self._published, self._published_s, self._is_logged = content, time.monotonic(), False

    def _publish_last(self) -> None:
        """Publish the state in which the run has ended, unless a newer run has taken over."""
        status = self._status()
        lease = self._registry.lease(self._place.identity)
        if status and lease is not None and lease.run == self._place.run:
            self._publish(status, ())

    def _status(self) -> dict[str, Any]:
        """Return the status with the answers to requests of the cluster in place of those to files."""
        status = self._read_status()
        if not status:
            return {}
        for file_name, answer in (status.get("requests") or {}).items():
            request_id = self._waiting.pop(file_name, None)
            if request_id is not None:
                self._answers.append((request_id, answer))
        return {**status, "requests": dict(self._answers)}


def _states(status: Mapping[str, Any]) -> tuple[Any, ...]:
    return status.get("state"), tuple((name, query.get("state")) for name, query in status["queries"].items())


def _ensure_topics(admin: Admin) -> set[str]:
    """Create the topics that do not exist, and return those that are there."""
    wanted = (STATUS_TOPIC, REQUESTS_TOPIC)
    there = {topic.name for topic in admin.list_topics(internal=True)}
    for topic in wanted:
        if topic not in there:
            # Without the right to create it there may still be the other one.
            with suppress(TopicAlreadyExistsError, AuthorizationError):
                admin.create_topic(topic, 1, configs=TOPIC_CONFIGS)
    return there if there.issuperset(wanted) else {topic.name for topic in admin.list_topics(internal=True)}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
