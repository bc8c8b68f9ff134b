"""Closes the clients of a program that ends without `flush()` or `close()`.

A blocking producer delivers its records: it is closed at exit, which waits at most delivery.timeout.ms. The event loop
of an asyncio producer has ended by then; only the count of its unsent records is printed. Lost records are reported on
stderr, with a count. A blocking consumer leaves its group, so that other members need not wait for its session timeout.
It commits nothing: whether the program has processed the records it was last given is unknown.
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
"""After so long at exit, a line on stderr says what the program waits for."""

LEAVE_S: Final = 3.0
"""How long exit waits for all consumers to leave their groups."""

_open: dict[Producer, AsyncProducer] = {}
"""Producers that were not closed. Strong references: one that goes out of scope still has records to deliver."""
_members: dict[Consumer[Any, Any], Callable[[float], None]] = {}
"""Consumers that were not closed. Strong references: their heartbeats continue on the shared thread."""


def register_producer(producer: Producer, inner: AsyncProducer) -> None:
    """Close a producer at exit, unless it is unregistered before."""
    _open[producer] = inner


def unregister_producer(producer: Producer) -> None:
    """Forget a producer that is closed, or that belongs to the parent of a forked process."""
    _open.pop(producer, None)


def register_member(consumer: Consumer[Any, Any], leave: Callable[[float], None]) -> None:
    """Call `leave` with a limit in seconds at exit, unless the consumer is unregistered before."""
    _members[consumer] = leave


def unregister_member(consumer: Consumer[Any, Any]) -> None:
    """Forget a consumer that is closed, or that belongs to the parent of a forked process."""
    _members.pop(consumer, None)


def print_warning(text: str) -> None:
    """Print a line on stderr; not by `logging`, whose handlers may be closed at exit."""
    if sys.stderr is not None:  # None in a program without console, such as pythonw
        sys.stderr.write(f"klamm: {text}\n")
        sys.stderr.flush()


def report_unsent(accumulator: Accumulator) -> None:
    """Report the records of an asyncio producer that was collected without `close`."""
    count = accumulator.count_records()
    if count:
        print_warning(
            f"{records(count)} not sent: an AsyncProducer was not closed; use `async with`, or await its close()"
        )


def records(count: int) -> str:
    """A number of records and its verb."""
    return "1 record was" if count == 1 else f"{count} records were"


@atexit.register
def _end_clients() -> None:
    # Consumers first: they take seconds at most, and delivery may take minutes.
    deadline = time.monotonic() + LEAVE_S
    for leave in list(_members.values()):
        with contextlib.suppress(KafkaError, TimeoutError, KeyboardInterrupt):
            leave(max(deadline - time.monotonic(), 0.0))
    for producer, inner in list(_open.items()):
        _close(producer, inner)


def _close(producer: Producer, inner: AsyncProducer) -> None:
    """Deliver the records of one producer, and report those that were lost."""
    # Taken before the close, which empties the accumulator; the batches tell afterwards what became of them.
    with inner.guard:
        waiting = inner.accumulator.list_unfinished()
    transaction = inner.session is not None and inner.session.open
    reason = ""
    try:
        # close() aborts an open transaction: waiting for its records would be for nothing.
        if waiting and not transaction:
            _wait(producer, sum(waiting.values()), inner.settings.seconds("delivery.timeout.ms"))
        producer.close()
    except KafkaError as error:
        reason = str(error)
    except KeyboardInterrupt:
        reason = "interrupted"
    if transaction:
        name = inner.settings["transactional.id"]
        print_warning(f"the transaction of {name} was open when the program ended, and was aborted")
        return
    lost = {batch: count for batch, count in waiting.items() if not batch.done or batch.error is not None}
    if lost:
        reason = reason or str(next((batch.error for batch in lost if batch.error is not None), "no response"))
        count, total = sum(lost.values()), sum(waiting.values())
        print_warning(f"{records(count)} not delivered when the program ended, of {total} that waited: {reason}")


def _wait(producer: Producer, count: int, limit_s: float) -> None:
    try:
        producer.flush(PATIENCE_S)
    except KafkaTimeoutError:
        print_warning(
            f"waiting up to {limit_s:g} s (delivery.timeout.ms) for {count} records to be delivered; Ctrl-C gives up"
        )
