"""The thread that takes samples, and the pages of a console that has just started."""

import asyncio
import dataclasses
import threading

from klamm.console.clusters import ClusterLink, ConsoleCluster
from klamm.console.collector import CollectorThread
from klamm.console.service import ConsoleConfig, now_ms

from .served import ServedConsole
from .test_samples import sample, topic

WAIT_S = 60


def test_a_page_that_does_not_wait_any_longer_ends_no_collection(broker):
    link = ClusterLink(ConsoleCluster("test", broker.bootstrap))
    samples = []

    def keep(_, sample):
        samples.append(sample)

    collector = CollectorThread([link], keep, now_ms, interval_s=600)
    collector.start()
    try:
        collector.refresh("test").result(WAIT_S)
        # As a form whose time is over: the sample for it is still under way.
        assert collector.refresh("test").cancel()
        before = len(samples)
        collector.refresh("test").result(WAIT_S)
        assert len(samples) > before
    finally:
        collector.stop()


def test_waiting_for_a_dead_broker_makes_no_long_pause(monkeypatch):
    """Only work of the thread does: a cluster that does not answer is read again after an interval."""
    pauses, paused = [], threading.Event()

    async def time_out(_):
        await asyncio.sleep(0.5)
        raise OSError("no answer")

    async def note_pause(_, __, seconds):
        pauses.append(seconds)
        paused.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("klamm.console.collector._connect", time_out)
    monkeypatch.setattr(CollectorThread, "_pause", note_pause)
    collector = CollectorThread([ClusterLink(ConsoleCluster("test", "127.0.0.1:9"))], print, now_ms, interval_s=0.01)
    collector.start()
    try:
        assert paused.wait(WAIT_S)
    finally:
        collector.stop()
    assert pauses[0] < 2


def test_the_overview_of_a_cluster_that_does_not_answer_is_marked(broker):
    with ServedConsole(ConsoleConfig((ConsoleCluster("test", broker.bootstrap),), interval_s=600)) as console:
        console.collect()
        visit = console.visitor()
        page = visit.get("/c/test")
        assert "all online" in page
        assert "not known now" not in page
        (link,) = console.service.links
        link.publish(dataclasses.replace(link.sample, time_ms=now_ms() - 40_000))
        link.expect_sample(15)
        page = visit.get("/c/test")
        assert "What is shown is 40 s old" in page
        assert "not known now" in page
        assert "all online" not in page
        assert "Nothing. All brokers" not in page
        visit.client.close()


def test_a_sample_is_stale_when_the_next_one_is_overdue():
    link = ClusterLink(ConsoleCluster("test", "127.0.0.1:9"))
    assert not link.is_stale(1_000_000)
    link.publish(dataclasses.replace(sample(topic("orders"), time_ms=100_000), collected_s=2.0))
    link.expect_sample(15)
    assert not link.is_stale(117_000)
    assert link.is_stale(117_001)
    link.error = "no answer"
    assert link.is_stale(100_000)


def test_the_first_page_waits_for_the_first_sample(broker):
    with ServedConsole(ConsoleConfig((ConsoleCluster("test", broker.bootstrap),), interval_s=600)) as console:
        visit = console.visitor()
        assert "<h1>Overview</h1>" in visit.get("/c/test")
        visit.client.close()


def test_a_cluster_that_cannot_be_reached_is_reported():
    with ServedConsole(ConsoleConfig((ConsoleCluster("test", "127.0.0.1:9"),), interval_s=600)) as console:
        visit = console.visitor()
        assert "Nothing is known of test yet" in visit.get("/c/test/topics", 503)
        visit.client.close()
