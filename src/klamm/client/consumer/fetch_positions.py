"""Where reading of a partition continues: committed offset, auto.offset.reset, and truncation after a leader change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from klamm.client.cluster import ClusterClient
from klamm.client.config import reset_span_ns
from klamm.client.consumer.core.subscription import AssignedPartition, Subscription
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

# A poll with a shorter timeout still lets one round trip to a broker finish, or poll(0) would never find a position.
_LOOKUP_S_MIN = 1.0
_RETRY_S = 0.05


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
        """Look up positions of partitions that have none, and validate those whose leader changed."""
        missing = [state for state in self._subscription.assigned.values() if state.position is None]
        loop = asyncio.get_running_loop()
        if missing:
            limit_s = max(deadline - loop.time(), _LOOKUP_S_MIN)
            try:
                await self._resolve(missing, min(self._api_s, limit_s))
            except KafkaError as error:
                if not error.retriable:
                    raise
                # The poll tries again until its own deadline; other partitions are read meanwhile.
                self._wake()
                await asyncio.sleep(min(_RETRY_S, max(deadline - loop.time(), 0)))
        await self._validate()

    async def of(self, state: AssignedPartition, timeout_s: float | None) -> int:
        """The position of one partition, looked up if it has none."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._api_s if timeout_s is None else timeout_s)
        while state.position is None:
            await self._resolve([state], max(deadline - loop.time(), _RETRY_S))
            if loop.time() > deadline:
                raise KafkaTimeoutError(f"the position of {state.where} was not found before the timeout")
        return state.position

    async def _resolve(self, missing: list[AssignedPartition], timeout_s: float) -> None:
        tickets = {state.where: state.ticket for state in missing}
        # Those with a reset (seek_to_end, out of range) ignore the committed offset.
        unpositioned = [state for state in missing if state.reset is None]
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        if unpositioned and self._coordinator is not None:
            places = [partition.where for partition in unpositioned]
            committed = await fetch_committed(self._coordinator, places, timeout_s, stable=self._committed_only)
        for state in unpositioned:
            position = committed.get(state.where)
            # A seek while the request was under way wins.
            if state.ticket != tickets[state.where] or state.position is not None:
                continue
            if position is not None:
                state.seek(position.offset, position.leader_epoch)
            else:
                state.reset = self._default_reset(state)
        resets = {state.where: state for state in missing if state.position is None and state.reset is not None}
        if not resets:
            return
        wanted = {where: timestamp.reset for where, timestamp in resets.items() if timestamp.reset is not None}
        offsets = await list_offsets(self._cluster, wanted, timeout_s, committed=self._committed_only)
        ends = {where: LATEST for where in wanted if offsets[where].offset < 0}
        # ListOffsets answers -1 for a time after the last record, as by_duration may ask for: continue at the end.
        if ends:
            offsets |= await list_offsets(self._cluster, ends, timeout_s, committed=self._committed_only)
        for where, state in resets.items():
            # `is`: revoked and assigned again meanwhile, the partition has a new state with a committed offset.
            if state.position is None and self._subscription.assigned.get(where) is state:
                state.seek(offsets[where].offset, -1)

    def _default_reset(self, state: AssignedPartition) -> int:
        # by_duration:PnDT... (KIP-1106) counts back from now.
        if self._reset_span_ns is not None:
            return max((time.time_ns() - self._reset_span_ns) // 1_000_000, 0)
        if self._policy == "none":
            group = "" if self._coordinator is None else f"{self._coordinator.group_id} has "
            raise NoOffsetError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{group}no offset for {state.where}; auto.offset.reset=none"
            )
        return EARLIEST if self._policy == "earliest" else LATEST

    def out_of_range(self, state: AssignedPartition) -> None:
        """Handle OFFSET_OUT_OF_RANGE: reset by auto.offset.reset, or an error for the next poll with `none`."""
        offset = state.fetch_offset
        if self._policy == "none":
            state.clear()
            state.error = OffsetOutOfRangeError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{state.where} has no offset {offset}; auto.offset.reset=none"
            )
            # The position stays: the user may seek, or poll again after retention or an election changed the log.
            state.fetch_offset = offset
            return
        _log.info("fetch offset %d of %s is out of range; resetting by auto.offset.reset", offset, state.where)
        state.need_reset(self._default_reset(state))

    async def _validate(self) -> None:
        """Check positions after a leader change (KIP-320); seek back to where the new leader's log was truncated."""
        table = self._cluster.table
        by_leader: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
        for where, state in self._subscription.assigned.items():
            known = table.partition(where)
            if known is None or known.leader < 0 or state.position is None or state.position_epoch < 0:
                continue
            if state.validated_epoch >= known.leader_epoch:
                continue
            # Read from this leader epoch itself: its log cannot have been truncated since.
            if state.validated_epoch < 0 and state.position_epoch >= known.leader_epoch:
                state.validated_epoch = known.leader_epoch
                continue
            by_leader.setdefault(known.leader, {})[where] = (known.leader_epoch, state.position_epoch)
        for leader, wanted in by_leader.items():
            try:
                ends = await epoch_ends(self._cluster, leader, wanted)
            except KafkaError as error:
                # For example a broker without OffsetForLeaderEpoch: read on without the check, or the partition would
                # never be fetched again.
                if not error.retriable:
                    for where, (current, _) in wanted.items():
                        if where in self._subscription.assigned:
                            self._subscription.assigned[where].validated_epoch = current
                self._cluster.request_update()
                continue
            for where, (current, _) in wanted.items():
                checked = self._subscription.assigned.get(where)
                if checked is None or checked.position is None or where not in ends:
                    self._cluster.request_update()
                    continue
                epoch, end = ends[where]
                # -1 is an epoch that the leader does not know: nothing to compare with.
                if 0 <= end < checked.position:
                    _log.warning("log of %s truncated to offset %d by a new leader; reading from there", where, end)
                    checked.seek(end, epoch)
                # After the seek, which resets it.
                checked.validated_epoch = current
