"""The sink of topics compared with a checkpoint: copied at each step of a batch, restored after later batches."""

import asyncio
import shutil
from dataclasses import replace

import pytest

import klamm
from klamm.pipeline.core.batch_ledger import LedgerError
from klamm.pipeline.query_checkpoint import QueryCheckpoint
from klamm.pipeline.task_writer import WriteId, commit_batch
from klamm.testing import unique
from pipeline.cuts import options, write


class Query:
    """A query without Spark: it plans a batch, writes it, and commits it in its checkpoint."""

    def __init__(self, broker, folder):
        self.broker, self.folder = broker, folder
        self.topic, self.sink = broker.topic("checked"), unique("sink")
        self.checkpoint = QueryCheckpoint.at(str(folder))

    def log(self, name, batch, text):
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / name / str(batch)).write_text(text)

    def plan(self, batch, end):
        self.log("offsets", batch, f'v1\n{{}}\n{{"t":{{"0":{end}}}}}')

    def write(self, batch, values):
        given = replace(options(self.broker.bootstrap, self.topic), checkpoint=str(self.folder))

        async def run():
            handle = await write(self.broker.bootstrap, self.topic, WriteId(self.sink, batch, 0), values)
            await commit_batch(given, WriteId(self.sink, batch), [] if handle is None else [handle])

        asyncio.run(run())

    def values(self):
        table = klamm.read_topic(self.topic, bootstrap=self.broker.bootstrap, timeout_s=60)
        return sorted(int(value) for value in table["value"].to_pylist())


def test_a_backup_of_each_step_of_a_batch_is_refused_or_exact(klamm_broker, tmp_path):
    query = Query(klamm_broker, tmp_path / "checkpoint")
    copies = {}
    query.folder.mkdir()

    def copy(batch, step):
        copies[batch, step] = tmp_path / f"{step}-{batch}"
        shutil.copytree(query.folder, copies[batch, step])

    for batch in range(3):
        copy(batch, "begun")
        query.plan(batch, 2 * batch + 2)
        copy(batch, "planned")
        query.write(batch, [str(2 * batch), str(2 * batch + 1)])
        copy(batch, "written")
        query.log("commits", batch, "v1\n{}")
    copy(3, "begun")
    exact = []
    for (batch, step), folder in copies.items():
        shutil.rmtree(query.folder)
        shutil.copytree(folder, query.folder)
        following = query.checkpoint.next_batch()
        if query.checkpoint.last_planned() < following:
            query.plan(following, 6 + following)  # with all records that came meanwhile
        first = 0 if not following else query.checkpoint.position(following - 1).ends[0]["t"]["0"]
        last = query.checkpoint.position(following).ends[0]["t"]["0"]
        try:
            query.write(following, [str(number) for number in range(first, last)])
        except LedgerError:
            assert query.values() == list(range(6)), (batch, step)
        else:
            exact.append((batch, step))
            assert query.values() == list(range(last)), (batch, step)
    assert exact == [(2, "planned"), (2, "written"), (3, "begun")]


def test_a_checkpoint_of_another_history_writes_nothing(klamm_broker, tmp_path):
    query = Query(klamm_broker, tmp_path / "checkpoint")
    query.plan(0, 2)
    query.write(0, ["0", "1"])
    shutil.rmtree(query.folder)
    query.plan(0, 3)
    with pytest.raises(LedgerError, match="planned batch 0 with other offsets"):
        query.write(0, ["0", "1", "2"])
    assert query.values() == [0, 1]
