"""Processes that die at a chosen request: the sink's tasks and drivers, without Spark around them.

A cut is a number: the request at which the process ends, as by kill -9, either before it is sent or when its
response has arrived. Each process is forked from a clean one, so that nothing cleans up after it.

Each sink has a checkpoint, in which the driver that survives plans batches as Spark does: every commit is judged by the
ledger, and leaves its note there.
"""

import asyncio
import json
import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa

from klamm.client import AsyncProducer
from klamm.client.connection import Connection
from klamm.pipeline.commits_topic import CommitsTopic
from klamm.pipeline.core.batch_ledger import SinkBatch
from klamm.pipeline.core.connector_options import write_options
from klamm.pipeline.core.sink_commits import SinkDecision
from klamm.pipeline.query_checkpoint import QueryCheckpoint
from klamm.pipeline.task_writer import TaskWriter, WriteId, commit_batch

KILLED = 9
_BORING = ("ApiVersions", "Metadata")

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["pipeline.cuts", "pipeline.adoptions"])


_folders = None


def plan(sink, batch):
    """Plan a batch in the checkpoint of a sink; return the checkpoint's folder."""
    global _folders  # noqa: PLW0603 - one for the tests of a process, removed at its end
    _folders = _folders or tempfile.TemporaryDirectory(prefix="klamm-cuts-")
    checkpoint = Path(_folders.name, sink)
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps({'source': {'0': batch + 1}})}")
    return str(checkpoint)


def written(sink, batch):
    """Whether the checkpoint of a sink has the note that the sink has committed a batch, with its position."""
    checkpoint = QueryCheckpoint.at(plan(sink, batch))
    return checkpoint.read_written() == (sink, SinkBatch(batch, checkpoint.position(batch).digest))


def options(bootstrap, topic, checkpoint=None):
    named = {} if checkpoint is None else {"checkpointLocation": checkpoint}
    return write_options({"kafka.bootstrap.servers": bootstrap, "topic": topic, **named})


async def write(bootstrap, topic, write_id, values):
    """One task; returns its transaction."""
    writer = TaskWriter(options(bootstrap, topic), write_id)
    if not await writer.begin():
        return None
    if values:
        await writer.send(topic, pa.record_batch({"value": pa.array([value.encode() for value in values])}), None)
    return await writer.prepare()


async def run_batch(bootstrap, topic, sink, batch, tasks, attempt=0):
    """A whole batch, as a driver that survives does it."""
    transactions = [
        await write(bootstrap, topic, WriteId(sink, batch, index, attempt), values)
        for index, values in enumerate(tasks)
    ]
    await commit(bootstrap, topic, sink, batch, transactions, plan(sink, batch))


async def commit(bootstrap, topic, sink, batch, transactions, checkpoint=None):
    prepared = [transaction for transaction in transactions if transaction is not None]
    await commit_batch(options(bootstrap, topic, checkpoint), WriteId(sink, batch), prepared)


async def decide(bootstrap, topic, sink, batch, transactions, ended, position=None):
    """A driver that dies after it wrote its decision and ended so many transactions."""
    if position is None:
        position = QueryCheckpoint.at(plan(sink, batch)).position(batch).text
    given = options(bootstrap, topic)
    settings = {"bootstrap.servers": bootstrap, "transactional.id": sink}
    async with CommitsTopic(sink, given.client, given.commits_topic) as commits, AsyncProducer(settings) as writer:
        await commits.create_if_missing()
        await writer.init_transactions()
        prepared = [transaction for transaction in transactions if transaction is not None]
        await commits.write_decision(writer, SinkDecision(sink, batch, tuple(prepared), position))
        assert not await commits.commit_transactions(prepared[:ended], batch)


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
        response = original(self, api, *args, **keywords)
        response.add_done_callback(lambda _: os._exit(KILLED))
        return response

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
        response = original(self, api, *args, **keywords)
        response.add_done_callback(lambda _: os._exit(KILLED))
        return response

    Connection.send = send


FILE_STEPS = (
    *((os, name) for name in ("replace", "rename", "makedirs", "link")),
    *((shutil, name) for name in ("rmtree", "copytree", "copyfile")),
)


def _die_at_file(cut, after):
    """Die before or after a step that changes files."""
    seen = 0

    def counted(original):
        def call(*args, **keywords):
            nonlocal seen
            seen += 1
            if seen == cut and not after:
                os._exit(KILLED)
            reached = seen == cut
            result = original(*args, **keywords)
            if reached:
                os._exit(KILLED)
            return result

        return call

    for owner, name in FILE_STEPS:
        setattr(owner, name, counted(getattr(owner, name)))


def _child(plan, work, args):
    if plan[0] == "files":
        _die_at_file(*plan[1:])
    else:
        (_die_at_request if isinstance(plan[0], str) else _die_at)(*plan)
    if asyncio.iscoroutinefunction(work):
        asyncio.run(work(*args))
    else:
        work(*args)


def dies(cut, after, work, *args):
    """Run work in a process that dies at a request; False when it came to its end before."""
    return dies_by((cut, after), work, *args)


def dies_by(plan, work, *args):
    """As `dies`; a plan is a number or a name and a number, and whether the response is awaited."""
    child = _forks.Process(target=_child, args=(plan, work, args))
    child.start()
    child.join(200)
    assert child.exitcode in (0, KILLED), f"the process ended with {child.exitcode}"
    return child.exitcode == KILLED
