"""A node whose start fails after its logs are open: they are closed, so that the next start need not recover them."""

import sys

import pytest

from klamm.model.errors import ErrorCode, KlammError
from klamm.server.boot.config import embedded_properties, parse_config
from klamm.server.cluster.broker_runtime import BrokerRuntime
from klamm.server.node import KlammNode, run_node
from klamm.storage.checkpoints import CLEAN_SHUTDOWN


@pytest.fixture
def switch_interval():
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def refuse(*_args):
    raise KlammError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "refused by the test")


async def refuse_later(*args, **_kwargs):
    refuse(*args)


@pytest.mark.usefixtures("switch_interval")
@pytest.mark.parametrize(
    ("part", "method", "failure"),
    [(KlammNode, "_compose", refuse), (BrokerRuntime, "join", refuse_later)],
    ids=["logs-are-open", "quorum-is-joined"],
)
def test_logs_are_closed_when_the_start_fails(tmp_path, monkeypatch, part, method, failure):
    config = parse_config(embedded_properties(str(tmp_path), 0), ())
    with monkeypatch.context() as patched:
        patched.setattr(part, method, failure)
        with pytest.raises(KlammError, match="refused by the test"):
            run_node(config, on_ready=pytest.fail)
    assert (tmp_path / CLEAN_SHUTDOWN).exists()
