"""A registry: its state, the log behind it, and the election; decides and writes if it leads.

Readers are served from memory by every registry. A write is decided here if this registry leads, one at a time, and is
otherwise forwarded by `app`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import klamm
from klamm.client.errors import KafkaError, ProducerFencedError
from klamm.http.metrics import ServiceMetric
from klamm.registry.checks import SchemaChecks
from klamm.registry.election import RegistryElection
from klamm.registry.log import SchemasLog
from klamm.registry.metrics import list_metrics
from klamm.registry.store import LogEntry, RegistryDecision, RegistryRefusal, RegistryState
from klamm.registry.store.election import RegistryIdentity
from klamm.registry.store.parsing import SchemaFormats, SchemaParser
from klamm.registry.store.registration import Registration
from klamm.registry.store.scopes import DEFAULT_LEVEL
from klamm.registry.store.subjects import parse_subject
from klamm.registry.write_queue import ChangeBatch, WriteQueue
from klamm.telemetry import get_logger

_log = get_logger("registry")

_TAKE_OVER_S: Final = 60.0
_SETTLE_S: Final = 0.5
"""So long after the last change the topic gets a record at its end."""
_LAST_RECORD_S: Final = 5.0
_READ_OWN_WRITE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """Settings of one registry."""

    client: Mapping[str, Any]
    """Client settings by Kafka's names, with bootstrap.servers."""
    advertised: RegistryIdentity
    topic: str = "_schemas"
    group_id: str = "schema-registry"
    default_level: str = DEFAULT_LEVEL
    write_timeout_s: float = 30.0
    start_timeout_s: float = 300.0


@dataclass(slots=True)
class RegistryCounts:
    """What the metrics count beside requests."""

    writes: int = 0
    forwarded: int = 0
    elections: int = 0
    fenced: int = 0


class NotLeading(Exception):
    """Raised for a write when another registry leads."""


class RegistryService:
    """Runs on one event loop; `start`, then serve, then `stop`."""

    def __init__(self, config: RegistryConfig, formats: SchemaFormats) -> None:
        self.config = config
        self.state = RegistryState()
        self.parser = SchemaParser(self.state, formats)
        self.registration = Registration(self.state, self.parser, config.default_level)
        # The same for all registries of a group: a new leader fences the old one by it.
        transactional_id = f"{config.group_id}-{config.topic}"
        self.log = SchemasLog(self.state, config.client, config.topic, transactional_id)
        self.election = RegistryElection(config.client, config.group_id, config.advertised, self)
        self.checks = SchemaChecks()
        self.counts = RegistryCounts()
        self.leader: RegistryIdentity | None = None
        self._leads = False
        self._queue = WriteQueue(self.state, self.check_sizes)
        self._writer: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._one_write = asyncio.Lock()
        self._may_write = asyncio.Event()
        """Not set while the group decides who leads."""
        self._leader_known = asyncio.Event()
        self._next_election = asyncio.Event()
        """Set, and replaced, by the next result of the group."""
        self._caught_up = False

    async def start(self) -> None:
        """Replay the topic, then join the group; reads may be served when this returns."""
        await self.log.open()
        await self.log.catch_up(self.config.start_timeout_s)
        self._caught_up = True
        subjects, records = len(self.state.subjects), self.state.records
        _log.info("schemas replayed", topic=self.config.topic, records=records, subjects=subjects)
        await self.election.start()

    async def stop(self) -> None:
        """Let the write in progress end, leave the group, and disconnect."""
        _log.info("registry stopping")
        await self.stop_writing()
        for task in filter(None, (self._writer, self._settling)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._write_last()
        self._queue.fail_all(RegistryRefusal(50004, "The registry is stopping"))
        await self.election.stop()
        await self.log.close()
        self.checks.close()

    @property
    def is_ready(self) -> bool:
        """Whether the topic is replayed and read on, and a leader is known."""
        return self._caught_up and self.log.is_reading and self.leader is not None

    # What operators see

    def check_liveness(self) -> None:
        """Raise if the reader of the topic has stopped."""
        self.log.check()

    def describe_readiness(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the topic is replayed and a leader is known, and both."""
        return self.is_ready, {
            "leading": self.is_leading(),
            "leader": self.leader.url if self.leader else None,
            "offset": self.log.position,
            "version": klamm.__version__,
        }

    def list_metrics(self) -> Iterable[ServiceMetric]:
        """Return the values of this registry."""
        return list_metrics(self)

    # What the election changes

    def is_leading(self) -> bool:
        """Whether this registry leads."""
        return self._leads

    async def stop_writing(self) -> None:
        """Let the write in progress end, and begin no other until `follow`."""
        self._may_write.clear()
        async with self._one_write:
            pass

    async def follow(self, leader: RegistryIdentity | None, *, own: bool) -> None:
        """Use a new leader; a registry that is elected itself takes over first."""
        if own and not self._leads:
            try:
                await self.log.begin_writing(_TAKE_OVER_S)
            except KafkaError as error:
                # Another election, after a pause: the cluster may be unable to write at the moment.
                _log.error("registry cannot lead", error=error)
                leader, own = None, False
                self.election.request_rejoin()
        elif not own:
            await self.log.stop_writing()
        self._leads, self.leader = own, leader
        if own:
            self._settle_later()
        if leader is None:
            self._leader_known.clear()
        else:
            self._leader_known.set()
        self._may_write.set()
        self.counts.elections += 1
        self._next_election.set()
        self._next_election = asyncio.Event()

    async def wait_leader(self, deadline: float, *, settled: bool = False) -> RegistryIdentity:
        """Return the leader, waiting for one until a time of the loop; 50004 when there is none.

        With `settled` it waits for the end of an election too: the leader that is known may be the one before.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                if settled:
                    await self._may_write.wait()
                await self._leader_known.wait()
        if self.leader is None:
            raise RegistryRefusal(50004, "No leader registry is known at the moment")
        return self.leader

    async def wait_election(self, elections: int, deadline: float) -> None:
        """Wait, until a time of the loop, for another election than the last of so many: its leader leads no more."""
        self.election.check_now()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self.counts.elections == elections:
                    await self._next_election.wait()

    async def read_own_write(self) -> None:
        """Wait until this registry has replayed what the leader has written; not for ever."""
        try:
            await self.log.catch_up(_READ_OWN_WRITE_S)
        except (KafkaError, OSError) as error:
            # The change is written: its answer stands, and a read here may be old for a moment.
            _log.warning("write of the leader not replayed yet", error=error)

    # Writing

    async def write(self, decide: Callable[[], RegistryDecision]) -> Any:
        """Decide, write and replay; returns the answer. NotLeading when another registry leads."""
        answer = self._queue.put(decide)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_queue(), name="klamm registry writer")
        try:
            # A request that times out leaves its batch alone: other changes are in it.
            return await asyncio.wait_for(answer, self.config.write_timeout_s)
        except TimeoutError:
            raise RegistryRefusal(50002, "The write was not confirmed in time; repeat the request") from None

    def _settle_later(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        self._settling = asyncio.create_task(self._settle(), name="klamm registry settle")

    async def _settle(self) -> None:
        await asyncio.sleep(_SETTLE_S)
        async with self._one_write:
            await self._write_last()

    async def _write_last(self) -> None:
        """Let the topic end with a record, for registries of other products; see `SchemasLog.append_last`."""
        if not (self._leads and self.log.ends_with_marker):
            return
        try:
            await self.log.append_last(self.state.id_floors_entry(), _LAST_RECORD_S)
        except (KafkaError, OSError) as error:
            _log.warning("last record not written", error=error)

    async def _write_queue(self) -> None:
        """Write until nothing is left."""
        while self._queue:
            await self._may_write.wait()
            async with self._one_write:
                if not self._may_write.is_set():
                    continue
                if not self._leads:
                    self._queue.fail_all(NotLeading())
                    return
                batch = self._queue.decide_batch()
                if batch.changes:
                    await self._write_batch(batch)
        self._settle_later()

    async def _write_batch(self, batch: ChangeBatch) -> None:
        entries = batch.entries
        if self.state.id_floors_lost:
            entries = [self.state.id_floors_entry(), *entries]
        try:
            await self.log.append(entries, self.config.write_timeout_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers wait for it
            failure = self._explain(error)
            for change in batch.changes:
                if not change.answer.done():
                    change.answer.set_exception(failure)
            return
        overtaken = []
        for change in batch.changes:
            assert change.decision is not None
            if not self._holds(change.decision.entries):
                overtaken.append(change)
            elif not change.answer.done():
                change.answer.set_result(change.decision.answer)
        self.counts.writes += len(batch.changes) - len(overtaken)
        if overtaken:
            # Only a registry that no transaction fences can have written meanwhile: decide again.
            _log.warning("writes overtaken by another registry", count=len(overtaken))
            self._queue.retry(overtaken)

    def _explain(self, error: Exception) -> Exception:
        """Resign after a failed write, and return what its callers get."""
        self._resign()
        if isinstance(error, ProducerFencedError):
            self.counts.fenced += 1
            _log.warning("registry fenced: another one leads")
            return NotLeading()
        _log.error("write failed", error=error)
        return RegistryRefusal(50001, f"The write failed, or was not confirmed: {error}; repeat it")

    def check_sizes(self, entries: Sequence[LogEntry]) -> None:
        """Refuse records that the topic does not take."""
        self.log.check_sizes(entries)

    def _resign(self) -> None:
        """Lead no more; the next election begins with a new producer, which settles what is unknown."""
        self._leads, self.leader = False, None
        self._leader_known.clear()
        self.election.request_rejoin()

    def _holds(self, entries: tuple[LogEntry, ...]) -> bool:
        for key, value in entries:
            if value is None or key.subject is None or key.version is None:
                continue
            version = self.state.version(parse_subject(key.subject), key.version)
            if version is None or version.schema_id != value["id"]:
                return False
        return True
