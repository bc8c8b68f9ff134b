"""Reading as a member of a group, one record at a time: what `consume --group` and kafka-console-consumer share."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.client.types import Record

POLL_S = 0.2


def read_as_member(
    settings: Mapping[str, Any], topics: Sequence[str] | re.Pattern[str], *, idle_s: float | None = None
) -> Iterator[Record]:
    """Records as they come; ends after `idle_s` without one. What was yielded is committed when the reader leaves."""
    from klamm.client import Consumer

    with Consumer(settings) as consumer:
        consumer.subscribe(topics if isinstance(topics, re.Pattern) else list(topics))
        last = time.monotonic()
        while idle_s is None or time.monotonic() - last < idle_s:
            for record in consumer.poll(POLL_S):
                yield record
                last = time.monotonic()
