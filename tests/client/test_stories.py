"""What the client promises, told to Klamm; `make compat` tells the same stories to Apache Kafka."""

import pytest

from harness import KlammProcess
from harness.client_stories import STORIES

QUICK_GROUPS = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "5000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with KlammProcess(tmp_path_factory.mktemp("klamm"), overrides=QUICK_GROUPS) as process:
        yield process


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_story(node, story):
    story(node.bootstrap)
