"""Requests that few clients send, to Apache Kafka and to Klamm: the answers must be the same.

Klamm's own tests say what its authors expect; a client library sends only what it was written to send. Here a raw
client asks both brokers, and Kafka's answer is the expectation.
"""

from collections.abc import Iterator

import pytest

from compat.brokers import KINDS, Broker
from harness.odd_requests import PROBES
from harness.wire import Wire


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Broker]]:
    started: dict[str, Broker] = {}
    try:
        for kind, broker in KINDS.items():
            started[kind] = broker(tmp_path_factory.mktemp(f"odd-{kind}")).start()
        yield started
    finally:
        for node in started.values():
            node.close()


@pytest.mark.parametrize("name", PROBES)
def test_both_answer_alike(pair: dict[str, Broker], name: str) -> None:
    answers = {}
    for kind, broker in pair.items():
        with Wire(broker.port) as wire:
            answers[kind] = PROBES[name](wire)
    assert answers["klamm"] == answers["kafka"]
