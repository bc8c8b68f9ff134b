"""A process that dies anywhere in --adopt, --from or snapshot: the command again ends in an exactly-once state.

KLAMM_CAMPAIGN=all python -m pytest tests/pipeline/test_adoption_kills.py     (or: make campaign)
"""

import asyncio
import json
import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import klamm
from klamm.pipeline.core.batch_ledger import BatchPosition
from klamm.pipeline.lake.folder_log import BatchEntry, FileMove, FolderLog
from klamm.pipeline.query_checkpoint import QueryCheckpoint
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.pipeline_registry import PipelineRegistry
from klamm.pipeline.sql.snapshots import list_snapshots
from klamm.pipeline.sql.state_folders import home_of
from klamm.pipeline.sql.status import Home
from klamm.pipeline.task_writer import WriteId, commit_batch
from klamm.testing import unique
from pipeline.adoptions import LABEL, LAKE, QUERIES, adopt, lake_of, pipeline_of, restore, snapshot
from pipeline.cuts import decide, dies_by, options, run_batch, write

pytestmark = pytest.mark.timeout(900)
ALL = os.environ.get("KLAMM_CAMPAIGN") == "all"
STRIDE, FILE_STRIDE = (1, 1) if ALL else (23, 7)
"""Of requests, and of steps that change files."""
STEPS_MAX = 400
NOW_MS = 1_767_225_600_000


class Site:
    """A pipeline whose checkpoints were set back to batch 0, while a driver died in the commit of batch 1."""

    def __init__(self, broker, folder):
        self.broker, self.home = broker, str(folder)
        self.topics = {name: broker.topic(name) for name in ("numbers", *QUERIES)}
        pipeline = pipeline_of(broker.bootstrap, self.topics, self.home)
        identity = QueryIdentity(unique("id"), self.topics["copies"], {}, {}).renew(pipeline)
        home_of(pipeline).keep(identity)
        registry = PipelineRegistry({"bootstrap.servers": broker.bootstrap})
        registry.ensure()
        registry.keep(identity, self.home)
        self.id = identity.id
        for query in QUERIES:
            self._damage(query, folder / f"{query}.0")
        self._damage_lake(folder / f"{LAKE}.0")
        (folder / "counts.0" / "state").mkdir()
        (folder / "counts.0" / "state" / "1.delta").write_text("state of batch 0")

    def position(self, end):
        return BatchPosition.of([{self.topics["numbers"]: {"0": end}}])

    def sink(self, query, generation):
        return f"klamm-spark-klamm-pipeline-{self.id}.{query}.{generation}"

    def _damage(self, query, folder):
        place, sink = (self.broker.bootstrap, self.topics[query]), self.sink(query, 0)
        self._plan_first(folder)
        tasks = [["0"], ["1"]]
        asyncio.run(run_batch(*place, sink, 0, tasks))
        transactions = [
            asyncio.run(write(*place, WriteId(sink, 1, index), [str(2 + index)])) for index in range(len(tasks))
        ]
        asyncio.run(decide(*place, sink, 1, transactions, 1, self.position(4).text))

    def _plan_first(self, folder):
        for log, text in (("offsets", f"v1\n{{}}\n{json.dumps(self.position(2).ends[0])}"), ("commits", "v1\n{}")):
            (folder / log).mkdir(parents=True)
            (folder / log / "0").write_text(text)

    def _damage_lake(self, folder):
        """Batch 0 is in the folder; of batch 1 the decision is, and its files are beside it."""
        self._plan_first(folder)
        log, app = FolderLog(lake_of(self.home)), f"klamm-pipeline-{self.id}.{LAKE}.0"
        for batch, numbers in enumerate(([0, 1], [2, 3])):
            staged = os.path.join(log.staging(app, str(batch)), "part.parquet")
            os.makedirs(os.path.dirname(staged))
            pq.write_table(pa.table({"n": numbers}), staged)
            move = FileMove(os.path.relpath(staged, log.side), f"{batch}.parquet")
            with log.hold_lock():
                if batch == 0:
                    log.commit_batch(app, batch, [move], self.position(2))
                else:
                    log._decide(app, BatchEntry(batch, (move,), self.position(4).text))

    def check_lake(self):
        """All rows of the decided batch are there, once, and the next batch continues at its end."""
        table = pq.read_table(lake_of(self.home))
        assert sorted(table["n"].to_pylist()) == [0, 1, 2, 3]
        checkpoint = QueryCheckpoint.at(os.path.join(self.home, f"{LAKE}.1"))
        assert (checkpoint.next_batch(), checkpoint.position(0)) == (1, self.position(4))

    def check(self, identity):
        """The copies continue at the end of batch 1, once; the counts have the state of the copy."""
        assert identity.id == self.id
        assert {identity.generations[query] for query in (*QUERIES, LAKE)} == {1}
        self.check_lake()
        assert self.values("copies") == self.values("counts") == [0, 1, 2, 3]
        folder = os.path.join(self.home, "copies.1")
        checkpoint = QueryCheckpoint.at(folder)
        assert (checkpoint.next_batch(), checkpoint.position(0)) == (1, self.position(4))
        counts = QueryCheckpoint.at(os.path.join(self.home, "counts.1"))
        assert (counts.next_batch(), counts.position(0)) == (1, self.position(2))
        with open(os.path.join(self.home, "counts.1", "state", "1.delta"), encoding="utf-8") as state:
            assert state.read() == "state of batch 0"
        # The next batch, as Spark plans and writes it on the new checkpoint.
        with open(os.path.join(folder, "offsets", "1"), "w", encoding="utf-8") as plan:
            plan.write(f"v1\n{{}}\n{json.dumps(self.position(5).ends[0])}")
        given = replace(options(self.broker.bootstrap, self.topics["copies"]), checkpoint=folder)
        sink = self.sink("copies", 1)

        async def run():
            transaction = await write(self.broker.bootstrap, self.topics["copies"], WriteId(sink, 1, 0), ["4"])
            await commit_batch(given, WriteId(sink, 1), [transaction])

        asyncio.run(run())
        assert self.values("copies") == [0, 1, 2, 3, 4]

    def values(self, query):
        table = klamm.read_topic(self.topics[query], bootstrap=self.broker.bootstrap, timeout_s=60)
        return sorted(int(value) for value in table["value"].to_pylist())


def try_each(broker, tmp_path, plan, first, stride, work=adopt):
    """Kill an adoption, or a start from a snapshot, at each step until one ends by itself; return how many died."""
    for killed, cut in enumerate(range(first, STEPS_MAX, stride)):
        site = Site(broker, tmp_path / f"{cut}")
        if work is restore:
            snapshot(site.home, NOW_MS)
        place = broker.bootstrap, site.topics, site.home
        if not dies_by(plan(cut), work, *place):
            site.check(work(*place))  # the same command again changes nothing
            return killed
        site.check(work(*place))
    raise AssertionError(f"more than {STEPS_MAX} steps")


@pytest.mark.parametrize("after", [False, True] if ALL else [False])
def test_killed_at_a_step_that_changes_files(klamm_broker, tmp_path, after):
    killed = try_each(
        klamm_broker, tmp_path, lambda cut: ("files", cut, after), 1 if ALL else 3 + 2 * after, FILE_STRIDE
    )
    assert killed >= 20 // FILE_STRIDE


@pytest.mark.parametrize("after", [False, True] if ALL else [True])
def test_killed_at_a_request(klamm_broker, tmp_path, after):
    killed = try_each(klamm_broker, tmp_path, lambda cut: (cut, after), 1 if ALL else 2 + 9 * after, STRIDE)
    assert killed >= 30 // STRIDE


@pytest.mark.parametrize("after", [False, True] if ALL else [True])
def test_a_start_from_a_snapshot_killed_at_a_step_that_changes_files(klamm_broker, tmp_path, after):
    first, stride = (1, 1) if ALL else (5, 40)
    killed = try_each(klamm_broker, tmp_path, lambda cut: ("files", cut, after), first, stride, restore)
    assert killed >= (20 if ALL else 1)


@pytest.mark.skipif(not ALL, reason="make campaign: the requests are those of an adoption")
@pytest.mark.parametrize("after", [False, True])
def test_a_start_from_a_snapshot_killed_at_a_request(klamm_broker, tmp_path, after):
    assert try_each(klamm_broker, tmp_path, lambda cut: (cut, after), 1, 1, restore) >= 30


@pytest.mark.parametrize("after", [False, True] if ALL else [False])
def test_a_snapshot_killed_at_a_step_that_changes_files(tmp_path, after):
    """A snapshot is whole, or there is none; what is left of a killed one is replaced."""
    identity = QueryIdentity("id", "numbers", {query: {} for query in QUERIES}, {})
    stride = 1 if ALL else 7
    for killed, cut in enumerate(range(1, STEPS_MAX, stride)):
        home = tmp_path / str(cut)
        for query in QUERIES:
            for name in ("offsets/0", "commits/0", "state/0/1.delta"):
                (home / f"{query}.0" / name).parent.mkdir(parents=True)
                (home / f"{query}.0" / name).write_text(f"v1 {query} {name}")
        Home(str(home)).keep(identity)
        died = dies_by(("files", cut, after), snapshot, str(home), NOW_MS)
        taken = list_snapshots(Home(str(home)))
        assert len(taken) == 1 if not died else len(taken) <= 1
        snapshot(str(home), NOW_MS)
        (taken,) = list_snapshots(Home(str(home)))
        assert (taken.label, taken.batches) == (LABEL, dict.fromkeys(QUERIES, 0))
        for path in home.glob("*.0/**/*"):
            copy = home / "snapshots" / LABEL / path.relative_to(home)
            assert copy.is_dir() == path.is_dir()
            assert path.is_dir() or copy.read_text() == path.read_text()
        if not died:
            assert killed >= 10 // stride
            return
    raise AssertionError(f"more than {STEPS_MAX} steps")
