"""Processes that die at a chosen request: the sink's tasks and drivers, without Spark around them.

A cut is a number: the request at which the process ends, as by kill -9, either before it is sent or when its answer has
arrived. Each process is forked from a clean one, so that nothing tidies up behind it.
"""

import asyncio
import multiprocessing
import os

import pyarrow as pa

from klamm.client import AsyncProducer
from klamm.client.connection import Connection
from klamm.pipeline.commits_topic import CommitLog
from klamm.pipeline.core.connector_options import write_options
from klamm.pipeline.core.sink_commits import SinkDecision
from klamm.pipeline.task_writer import TaskWriter, WriteId, commit_batch

KILLED = 9
_BORING = ("ApiVersions", "Metadata")

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["pipeline.cuts"])


def options(bootstrap, topic):
    return write_options({"kafka.bootstrap.servers": bootstrap, "topic": topic})


async def write(bootstrap, topic, place, values):
    """One task; returns its handle."""
    work = TaskWriter(options(bootstrap, topic), place)
    if not await work.begin():
        return None
    if values:
        await work.send(topic, pa.record_batch({"value": pa.array([value.encode() for value in values])}), None)
    return await work.finish()


async def run_batch(bootstrap, topic, sink, batch, tasks, attempt=0):
    """A whole batch, as a driver that survives does it."""
    handles = [
        await write(bootstrap, topic, WriteId(sink, batch, index, attempt), values)
        for index, values in enumerate(tasks)
    ]
    await commit(bootstrap, topic, sink, batch, handles)


async def commit(bootstrap, topic, sink, batch, handles):
    prepared = [handle for handle in handles if handle is not None]
    await commit_batch(options(bootstrap, topic), WriteId(sink, batch), prepared)


async def decide(bootstrap, topic, sink, batch, handles, ended):
    """A driver that wrote its decision down and ended so many transactions, and then was no more."""
    given = options(bootstrap, topic)
    settings = {"bootstrap.servers": bootstrap, "transactional.id": sink}
    async with CommitLog(sink, given.client, given.commits_topic) as commits, AsyncProducer(settings) as writer:
        await commits.ensure()
        await writer.init_transactions()
        prepared = [handle for handle in handles if handle is not None]
        await commits.decide(writer, SinkDecision(sink, batch, tuple(prepared)))
        assert not await commits.commit_all(prepared[:ended], batch)


def _die_at(cut, after):
    original = Connection.send
    seen = 0

    def send(self, api, *args, **keywords):
        nonlocal seen
        if api.name in _BORING:
            return original(self, api, *args, **keywords)
        seen += 1
        if seen < cut:
            return original(self, api, *args, **keywords)
        if not after:
            os._exit(KILLED)
        answer = original(self, api, *args, **keywords)
        answer.add_done_callback(lambda _: os._exit(KILLED))
        return answer

    Connection.send = send


def _die_at_request(name, nth, after):
    """As `_die_at`, at the nth request of a name."""
    original = Connection.send
    seen = 0

    def send(self, api, *args, **keywords):
        nonlocal seen
        seen += api.name == name
        if api.name != name or seen != nth:
            return original(self, api, *args, **keywords)
        if not after:
            os._exit(KILLED)
        answer = original(self, api, *args, **keywords)
        answer.add_done_callback(lambda _: os._exit(KILLED))
        return answer

    Connection.send = send


def _child(plan, work, args):
    (_die_at_request if isinstance(plan[0], str) else _die_at)(*plan)
    asyncio.run(work(*args))


def dies(cut, after, work, *args):
    """Run work in a process that dies at a request; False when it came to its end before."""
    return dies_by((cut, after), work, *args)


def dies_by(plan, work, *args):
    """As `dies`; a plan is a number or a name and a number, and whether the answer is waited for."""
    child = _forks.Process(target=_child, args=(plan, work, args))
    child.start()
    child.join(200)
    assert child.exitcode in (0, KILLED), f"the process ended with {child.exitcode}"
    return child.exitcode == KILLED
