"""Made-up messages for every test of this folder."""

import pytest

from harness.made_messages import MessageMaker


@pytest.fixture(scope="session")
def maker():
    """The maker of made-up messages: `maker(seed).message(cls, version)`."""
    return MessageMaker
