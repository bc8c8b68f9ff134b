"""Tables in and out; `make compat` tells the same stories to Apache Kafka."""

import asyncio

import pytest

from harness.client_stories import topic
from harness.column_stories import COLUMNS, table
from klamm.client import Producer


@pytest.mark.parametrize("story", COLUMNS.values(), ids=COLUMNS.keys())
def test_story(klamm, story):
    story(klamm.bootstrap)


def test_inside_a_running_loop(klamm):
    name = topic(klamm.bootstrap)

    async def notebook():
        with Producer(bootstrap_servers=klamm.bootstrap) as producer:
            producer.send(name, b"x")
        return table(name, klamm.bootstrap).num_rows

    assert asyncio.run(notebook()) == 1
