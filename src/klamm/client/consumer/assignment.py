"""The partitions a group gave to a consumer: given and taken with the user's callbacks around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

from klamm.client.consumer.commits import Commits
from klamm.client.consumer.core.fetch_buffer import FetchBuffer
from klamm.client.consumer.core.subscription import Subscription
from klamm.client.consumer.group import Callback
from klamm.client.metrics import CoordinatorWork
from klamm.model.ids import TopicPartition


class Assignment:
    """What a group sees of its consumer (`group.Host`); `fetch` is called after partitions came, `wake` for a poll."""

    def __init__(
        self,
        subscription: Subscription,
        fetch_buffer: FetchBuffer,
        commits: Commits,
        fetch: Callable[[], None],
        wake: Callable[[], None],
        work: CoordinatorWork,
    ) -> None:
        self.on_assign: Callback | None = None
        self.on_revoke: Callback | None = None
        self.on_lost: Callback | None = None
        self.wake = wake
        self.work = work
        self._subscription = subscription
        self._fetch_buffer = fetch_buffer
        self._commits = commits
        self._fetch = fetch

    @property
    def topics(self) -> frozenset[str]:
        """The topics wanted."""
        return self._subscription.topics

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions assigned now, in order."""
        return sorted(self._subscription.assigned)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Have partitions added; tell the user."""
        added = list(partitions)
        self._subscription.take([*self._subscription.assigned, *added])
        await _call(self.on_assign, added)
        self._fetch()

    async def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit, tell the user, then have partitions taken away."""
        gone = list(partitions)
        if not gone:
            return
        self._fetch_buffer.settle()
        await self._commits.before_leaving()
        await _call(self.on_revoke, gone)
        self._drop(gone)

    async def lose(self) -> None:
        """Have all partitions taken away: others may have them already."""
        gone = self.owned
        if gone:
            await _call(self.on_lost or self.on_revoke, gone)
            self._drop(gone)

    def _drop(self, gone: list[TopicPartition]) -> None:
        self._fetch_buffer.forget(gone)
        dropped = set(gone)
        self._subscription.take([partition for partition in self._subscription.assigned if partition not in dropped])


async def _call(callback: Callback | None, partitions: list[TopicPartition]) -> None:
    if callback is None:
        return
    outcome = callback(partitions)
    if inspect.isawaitable(outcome):
        await outcome
