"""Queries of a pipeline start one after the other: Spark gives the Python process of each ten seconds."""

import threading
from types import SimpleNamespace

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.status import Home
from klamm.pipeline.sql.supervisor import Supervisor


class Handle:
    """A run whose sources begin after a few polls."""

    lastProgress = None  # noqa: N815 - Spark's names
    recentProgress = ()  # noqa: N815
    isActive = True  # noqa: N815

    def __init__(self, polls):
        self.left = polls

    @property
    def status(self):
        self.left = max(self.left - 1, 0)
        message = "Initializing sources" if self.left else "Getting offsets from somewhere"
        return {"message": message, "isTriggerActive": False}

    def exception(self):
        return None

    def stop(self):
        self.isActive = False


def query(name, handle, before, started):
    def start(*, once, trigger=None):
        # Not asserted here: the supervisor takes an error of a start for one that a restart heals.
        early = any(other.left for other in before)
        started.append(f"{name} while another begins" if early else name)
        return handle

    node = SimpleNamespace(name=name, option=lambda _: None, streams=(), tables=())
    return SimpleNamespace(name=name, node=node, checkpoint="nowhere", in_passes=False, start=start)


def test_a_query_waits_until_the_sources_of_the_one_before_are_there(tmp_path):
    started = []
    handles = [Handle(3), Handle(2), Handle(1)]
    queries = [query(f"q{place}", handle, handles[:place], started) for place, handle in enumerate(handles)]
    home = Home(str(tmp_path / "bank"))
    runner = Supervisor(queries, home)
    thread = threading.Thread(target=runner.run, kwargs={"once": False})
    thread.start()
    while thread.is_alive() and len(started) < 3:
        thread.join(0.01)
    runner.stop()
    thread.join(60)
    assert started == ["q0", "q1", "q2"]
    assert home.status()["state"] == "stopped"


def test_over_the_current_records_the_first_start_is_alone(tmp_path):
    """Two first starts at once would corrupt the map of variables that all sources of a session share."""
    started = []
    handles = [Handle(4), Handle(4), Handle(4)]
    befores = [[], handles[:1], handles[:1]]
    queries = [
        query(f"q{place}", handle, before, started)
        for place, (handle, before) in enumerate(zip(handles, befores, strict=True))
    ]
    runner = Supervisor(queries, Home(str(tmp_path / "bank")), parallel=3)
    thread = threading.Thread(target=run_stopped, args=(runner,))
    thread.start()
    while thread.is_alive() and len(started) < 3:
        thread.join(0.01)
    runner.stop()
    thread.join(60)
    assert started == ["q0", "q1", "q2"]


def run_stopped(runner):
    """Run until it is stopped: the handles never end, and a stop before the end is an error."""
    with pytest.raises(ConfigError, match="was stopped before"):
        runner.run(once=True)
