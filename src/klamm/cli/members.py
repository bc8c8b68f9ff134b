"""Reading as a member of a group, one record at a time: what `consume --group` and kafka-console-consumer share."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.client.types import Record

POLL_S = 0.2
COMMIT_S = 5.0


def read_as_member(
    settings: Mapping[str, Any],
    topics: Sequence[str] | re.Pattern[str],
    *,
    idle_s: float | None = None,
    commit: bool = True,
) -> Iterator[Record]:
    """Records as they come; ends after `idle_s` without one.

    Committed is what was handed out and come back for, not what was fetched: every few seconds, and at the end.
    """
    from klamm.client import Consumer
    from klamm.client.types import OffsetAndMetadata

    with Consumer({**settings, "enable.auto.commit": "false"}) as consumer:
        consumer.subscribe(topics if isinstance(topics, re.Pattern) else list(topics))
        last = committed = time.monotonic()
        read: dict[Any, OffsetAndMetadata] = {}
        try:
            while idle_s is None or time.monotonic() - last < idle_s:
                for record in consumer.poll(POLL_S):
                    read[record.topic_partition] = OffsetAndMetadata(record.offset + 1)
                    yield record
                    last = time.monotonic()
                if commit and read and time.monotonic() - committed > COMMIT_S:
                    consumer.commit(read)
                    read, committed = {}, time.monotonic()
        finally:
            if commit and read:
                consumer.commit(read)
