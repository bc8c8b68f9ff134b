"""The error code and message of each item of an admin request, for commands that report every item."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.errors import KafkaError, SomeFailed
from klamm.model.errors import ErrorCode

K = TypeVar("K")
ItemOutcome = tuple[ErrorCode, str | None]
DONE: ItemOutcome = (ErrorCode.NONE, None)


def item_outcomes(
    cluster: BlockingCluster, work: Coroutine[Any, Any, Any], items: Iterable[K] = ()
) -> dict[K, ItemOutcome]:
    """Run an admin request; NONE for every item that succeeded, also for `items` that the response does not name."""
    failures: Mapping[Any, KafkaError] = {}
    results: Mapping[Any, Any] = {}
    try:
        results = cluster.run(work) or {}
    except SomeFailed as error:
        failures, results = error.failures, error.results
    except KafkaError as error:
        if error.item is None:  # the request was refused as a whole
            raise
        failures = {error.item: error}
    outcomes: dict[K, ItemOutcome] = dict.fromkeys([*items, *results], DONE)
    outcomes.update({item: (error.code, error.detail) for item, error in failures.items()})
    return outcomes
