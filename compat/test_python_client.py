"""Klamm's own client: the stories of `tests/client`, told to the broker under test; beside Java's client, the same places."""

import random

import pytest

from compat.brokers import Broker
from compat.clients import JavaClient
from harness.client_stories import STORIES, read, reader, topic
from klamm.client import Producer


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_story(broker: Broker, story):
    story(broker.bootstrap)
