"""Klamm's own client: the stories of `tests/client` told to the broker under test, and beside Java's client."""

import pytest

from compat.brokers import Broker
from harness.client_stories import STORIES


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_story(broker: Broker, story):
    story(broker.bootstrap)
