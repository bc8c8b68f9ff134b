"""What becomes of records and memberships when a program ends without `flush()` or `close()`.

A blocking producer delivers its records: it is closed at exit, which waits for every record at most
delivery.timeout.ms. An asyncio producer has no loop any more by then; it only says how many records it still had. What
is lost is said on stderr, with a count. A blocking consumer leaves its group, so that others need not wait for its
session to end. It commits nothing: what the program was doing with the records last returned is not known.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from klamm.client.errors import KafkaError, KafkaTimeoutError

if TYPE_CHECKING:
    from klamm.client.blocking_consumer import Consumer
    from klamm.client.blocking_producer import Producer
    from klamm.client.producer import AsyncProducer
    from klamm.client.producer.core.accumulator import Accumulator

PATIENCE_S: Final = 1.0
"""After so long the program says what it is waiting for."""

LEAVE_S: Final = 3.0
"""How long a program that ends waits for all its consumers to leave their groups."""

_open: dict[Producer, AsyncProducer] = {}
"""Producers that were not closed. They are kept: one that goes out of scope with its function still has its records."""
_members: dict[Consumer[Any, Any], Callable[[float], None]] = {}
"""Consumers that were not closed. Their heartbeats go on in the client's thread, in whichever scope they were made."""


def remember(producer: Producer, inner: AsyncProducer) -> None:
    """Close a producer at exit, unless it is forgotten before."""
    _open[producer] = inner


def forget(producer: Producer) -> None:
    """It is closed, or another process's."""
    _open.pop(producer, None)


def remember_member(consumer: Consumer[Any, Any], leave: Callable[[float], None]) -> None:
    """Call `leave` with a limit in seconds at exit, unless the consumer is forgotten before."""
    _members[consumer] = leave


def forget_member(consumer: Consumer[Any, Any]) -> None:
    """It is closed, or another process's."""
    _members.pop(consumer, None)


def say(words: str) -> None:
    """One line on stderr; a program without one is not told."""
    if sys.stderr is not None:
        sys.stderr.write(f"klamm: {words}\n")
        sys.stderr.flush()


def report_unsent(accumulator: Accumulator) -> None:
    """An asyncio producer is gone and was not closed."""
    count = accumulator.count_records()
    if count:
        say(f"{records(count)} not sent: an AsyncProducer was not closed; use `async with`, or await its close()")


def records(count: int) -> str:
    """A number of records and its verb."""
    return "1 record was" if count == 1 else f"{count} records were"


@atexit.register
def _end_clients() -> None:
    # Members first: they take seconds at most, and delivering may take minutes.
    deadline = time.monotonic() + LEAVE_S
    for leave in list(_members.values()):
        with contextlib.suppress(KafkaError, TimeoutError, KeyboardInterrupt):
            leave(max(deadline - time.monotonic(), 0.0))
    for producer, inner in list(_open.items()):
        _close(producer, inner)


def _close(producer: Producer, inner: AsyncProducer) -> None:
    """Deliver what one producer has, and report what was lost."""
    with inner.guard:
        waiting = inner.accumulator.unfinished()
    transaction = inner.session is not None and inner.session.open
    reason = ""
    try:
        if waiting and not transaction:
            _wait(producer, sum(waiting.values()), inner.settings.seconds("delivery.timeout.ms"))
        producer.close()
    except KafkaError as error:
        reason = str(error)
    except KeyboardInterrupt:
        reason = "interrupted"
    if transaction:
        name = inner.settings["transactional.id"]
        say(f"the transaction of {name} was open when the program ended, and was aborted")
        return
    lost = {batch: count for batch, count in waiting.items() if not batch.done or batch.error is not None}
    if lost:
        reason = reason or str(next((batch.error for batch in lost if batch.error is not None), "no answer"))
        count, total = sum(lost.values()), sum(waiting.values())
        say(f"{records(count)} not delivered when the program ended, of {total} that waited: {reason}")


def _wait(producer: Producer, count: int, limit_s: float) -> None:
    try:
        producer.flush(PATIENCE_S)
    except KafkaTimeoutError:
        say(f"waiting up to {limit_s:g} s (delivery.timeout.ms) for {count} records to be delivered; Ctrl-C gives up")
