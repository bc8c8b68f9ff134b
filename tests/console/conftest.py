"""One broker and one console for all tests of a module."""

import pytest

from klamm.console.clusters import ConsoleCluster
from klamm.console.service import ConsoleConfig
from klamm.console.settings import parse_settings
from klamm.testing import InProcessBroker

from .served import ServedConsole

SETTINGS = """
[[masks]]
topics = ["masked-*"]
fields = ["card.number"]

[audit]
topic = "console-audit"
"""


@pytest.fixture(scope="module")
def broker():
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def console(broker):
    """A console without logins, over the broker of the module; samples are taken when a test asks for one."""
    cluster = ConsoleCluster("test", broker.bootstrap)
    with ServedConsole(ConsoleConfig((cluster,), parse_settings(SETTINGS), interval_s=600)) as console:
        console.collect()
        yield console


@pytest.fixture
def visit(console):
    visit = console.visitor()
    yield visit
    visit.client.close()
