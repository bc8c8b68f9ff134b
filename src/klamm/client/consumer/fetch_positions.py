"""Where a partition is read on: the committed offset, what auto.offset.reset says, and what a new leader still has."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from klamm.client.cluster import ClusterClient
from klamm.client.config import reset_span_ns
from klamm.client.consumer.core.subscription import Assigned, Subscription
from klamm.client.consumer.offsets import (
    EARLIEST,
    LATEST,
    GroupCoordinator,
    epoch_ends,
    fetch_committed,
    list_offsets,
)
from klamm.client.errors import KafkaError, KafkaTimeoutError, NoOffsetError, OffsetOutOfRangeError
from klamm.client.types import OffsetAndMetadata
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition

_log = logging.getLogger(__name__)


class FetchPositions:
    """Finds positions for the partitions that have none, and checks those of the others when leaders change."""

    def __init__(
        self,
        cluster: ClusterClient,
        subscription: Subscription,
        coordinator: GroupCoordinator | None,
        wake: Callable[[], None],
    ) -> None:
        settings = cluster.settings
        self._cluster = cluster
        self._subscription = subscription
        self._coordinator = coordinator
        self._wake = wake
        self._api_s = settings.seconds("default.api.timeout.ms")
        self._policy = settings.text("auto.offset.reset")
        self._reset_span_ns = reset_span_ns(self._policy)
        self._committed_only = settings["isolation.level"] == "read_committed"

    async def find(self, deadline: float) -> None:
        """Find out where to begin, for partitions that do not know, and check those whose leader changed."""
        lacking = [state for state in self._subscription.assigned.values() if state.position is None]
        loop = asyncio.get_running_loop()
        if lacking:
            limit_s = max(deadline - loop.time(), 0.05)
            try:
                await self._begin(lacking, min(self._api_s, max(limit_s, 1.0)))
            except KafkaError as error:
                if not error.retriable:
                    raise
                self._wake()
                await asyncio.sleep(min(0.05, max(deadline - loop.time(), 0)))
        await self._validate()

    async def of(self, state: Assigned, timeout_s: float | None) -> int:
        """The position of one partition, found out if need be."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._api_s if timeout_s is None else timeout_s)
        while state.position is None:
            await self._begin([state], max(deadline - loop.time(), 0.05))
            if loop.time() > deadline:
                raise KafkaTimeoutError(f"the position of {state.where} could not be found out in time")
        return state.position

    async def _begin(self, lacking: list[Assigned], timeout_s: float) -> None:
        tickets = {state.where: state.ticket for state in lacking}
        asked = [state for state in lacking if state.reset is None]
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        if asked and self._coordinator is not None:
            places = [partition.where for partition in asked]
            committed = await fetch_committed(self._coordinator, places, timeout_s, stable=self._committed_only)
        for state in asked:
            position = committed.get(state.where)
            if state.ticket != tickets[state.where] or state.position is not None:
                continue
            if position is not None:
                state.seek(position.offset, position.leader_epoch)
            else:
                state.reset = self._default_reset(state)
        resets = {state.where: state for state in lacking if state.position is None and state.reset is not None}
        if not resets:
            return
        wanted = {where: timestamp.reset for where, timestamp in resets.items() if timestamp.reset is not None}
        offsets = await list_offsets(self._cluster, wanted, timeout_s, committed=self._committed_only)
        ends = {where: LATEST for where in wanted if offsets[where].offset < 0}
        if ends:  # nothing as young as that: the end
            offsets |= await list_offsets(self._cluster, ends, timeout_s, committed=self._committed_only)
        for where, state in resets.items():
            if state.position is None and self._subscription.assigned.get(where) is state:
                state.seek(offsets[where].offset, -1)

    def _default_reset(self, state: Assigned) -> int:
        if self._reset_span_ns is not None:
            return max((time.time_ns() - self._reset_span_ns) // 1_000_000, 0)
        if self._policy == "none":
            group = "" if self._coordinator is None else f"{self._coordinator.group_id} has "
            raise NoOffsetError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{group}no offset for {state.where}; auto.offset.reset=none"
            )
        return EARLIEST if self._policy == "earliest" else LATEST

    def out_of_range(self, state: Assigned) -> None:
        """The broker does not have the offset."""
        offset = state.fetch_offset
        if self._policy == "none":
            state.clear()
            state.error = OffsetOutOfRangeError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{state.where} has no offset {offset}; auto.offset.reset=none"
            )
            state.fetch_offset = offset
            return
        _log.info("%s has no offset %d; auto.offset.reset decides", state.where, offset)
        state.need_reset(self._default_reset(state))

    async def _validate(self) -> None:
        """After a change of leader: is what was read still in the log? If not, go back to where the logs part."""
        table = self._cluster.table
        by_leader: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
        for where, state in self._subscription.assigned.items():
            known = table.partition(where)
            if known is None or known.leader < 0 or state.position is None or state.position_epoch < 0:
                continue
            if state.validated_epoch >= known.leader_epoch:
                continue
            if state.validated_epoch < 0 and state.position_epoch >= known.leader_epoch:
                state.validated_epoch = known.leader_epoch
                continue
            by_leader.setdefault(known.leader, {})[where] = (known.leader_epoch, state.position_epoch)
        for leader, wanted in by_leader.items():
            try:
                ends = await epoch_ends(self._cluster, leader, wanted)
            except KafkaError as error:
                if not error.retriable:
                    for where, (current, _) in wanted.items():
                        if where in self._subscription.assigned:
                            self._subscription.assigned[where].validated_epoch = current
                self._cluster.request_update()
                continue
            for where, (current, _) in wanted.items():
                states = self._subscription.assigned.get(where)
                if states is None or states.position is None or where not in ends:
                    self._cluster.request_update()
                    continue
                epoch, end = ends[where]
                if 0 <= end < states.position:
                    _log.warning("%s was truncated to %d by a new leader; going on from there", where, end)
                    states.seek(end, epoch)
                states.validated_epoch = current
