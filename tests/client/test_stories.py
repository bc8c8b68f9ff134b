"""What the client promises, told to Klamm; `make compat` tells the same stories to Apache Kafka."""

import pytest

from harness import KlammProcess
from harness.client_stories import STORIES
from harness.group_stories import GROUPS

QUICK_GROUPS = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "5000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with KlammProcess(tmp_path_factory.mktemp("klamm"), overrides=QUICK_GROUPS) as process:
        yield process


@pytest.mark.parametrize("story", (STORIES | GROUPS).values(), ids=STORIES | GROUPS)
def test_story(node, story):
    story(node.bootstrap)
