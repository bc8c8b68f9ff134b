"""Applies a group's assignment to a consumer: partitions added and revoked, with commits and the user's callbacks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

from klamm.client.consumer.commits import Commits
from klamm.client.consumer.core.fetch_buffer import FetchBuffer
from klamm.client.consumer.core.subscription import Subscription
from klamm.client.consumer.group import RebalanceCallback
from klamm.client.metrics import CoordinatorWork
from klamm.model.ids import TopicPartition


class Assignment:
    """The consumer as its membership sees it (`group.Host`); `fetch` is called after partitions were added."""

    def __init__(
        self,
        subscription: Subscription,
        fetch_buffer: FetchBuffer,
        commits: Commits,
        fetch: Callable[[], None],
        wake: Callable[[], None],
        work: CoordinatorWork,
    ) -> None:
        self.on_assign: RebalanceCallback | None = None
        self.on_revoke: RebalanceCallback | None = None
        self.on_lost: RebalanceCallback | None = None
        self.wake = wake
        self.work = work
        self._subscription = subscription
        self._fetch_buffer = fetch_buffer
        self._commits = commits
        self._fetch = fetch

    @property
    def topics(self) -> frozenset[str]:
        """The subscribed topics."""
        return self._subscription.topics

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions assigned now, in order."""
        return sorted(self._subscription.assigned)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions, then call the user's on_assign."""
        added = list(partitions)
        self._subscription.take([*self._subscription.assigned, *added])
        # The callback runs before the first fetch, so that a seek in it decides where reading begins. Called with an
        # empty list too, as Java does: the callback marks the end of a rebalance.
        await _call(self.on_assign, added)
        self._fetch()

    async def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit offsets, call the user's on_revoke, then remove partitions."""
        gone = list(partitions)
        if not gone:
            return
        # Positions must not include records of an unfinished iteration, or the commit would skip them.
        self._fetch_buffer.return_unread()
        await self._commits.commit_before_revoke()
        await _call(self.on_revoke, gone)
        self._drop(gone)

    async def lose(self) -> None:
        """Remove all partitions without a commit: other members may own them already."""
        gone = self.owned
        if gone:
            # No commit: the coordinator would refuse it with UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION. As in Java,
            # on_revoke stands in for a missing on_lost.
            await _call(self.on_lost or self.on_revoke, gone)
            self._drop(gone)

    def _drop(self, gone: list[TopicPartition]) -> None:
        self._fetch_buffer.forget(gone)
        dropped = set(gone)
        self._subscription.take([partition for partition in self._subscription.assigned if partition not in dropped])


async def _call(callback: RebalanceCallback | None, partitions: list[TopicPartition]) -> None:
    if callback is None:
        return
    outcome = callback(partitions)
    if inspect.isawaitable(outcome):
        await outcome
