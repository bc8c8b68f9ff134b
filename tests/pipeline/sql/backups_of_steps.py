"""A whole pipeline whose checkpoints were copied at each step of a batch, and are restored after later batches.

KLAMM_CAMPAIGN=all python -m pytest tests/pipeline/sql/backups_of_steps.py     (or: make campaign)
"""

import json
import shutil

import pytest

from klamm.pipeline.query_checkpoint import QueryCheckpoint
from pipeline.sql.test_restored_checkpoints import QUERIES, TEXT, Site

pytestmark = pytest.mark.timeout(1200)
STEPS = {"planned": (0, -1, -1), "written": (0, 0, -1), "committed": (0, 0, 0)}
"""What a checkpoint has while batch N runs: the newest plan, note of the sink and commit, relative to N."""


def checkpoint_at(folder, batch, step):
    """Make a query's checkpoint what it was at a step of a batch, by Spark's own files."""
    planned, written, committed = (batch + offset for offset in STEPS[step])
    for log, newest in (("offsets", planned), ("commits", committed)):
        for path in (folder / log).iterdir():
            # Spark checks a file by `.N.crc`, if there is one.
            if int(path.name.removeprefix(".").removesuffix(".crc")) > newest:
                path.unlink()
    QueryCheckpoint.at(str(folder)).record_written(note_of(folder)["sink"], written)
    if written < 0:
        (folder / "klamm" / "written").unlink()


def note_of(folder):
    return json.loads((folder / "klamm" / "written").read_text())


def test_a_backup_of_each_step_of_a_batch_is_refused_or_exact(
    spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path
):
    """A backup is taken while a batch runs, and restored after later batches."""
    site = Site(spark, patiently, klamm_broker, klamm_name, tmp_path)
    klamm_admin.create_topic(site.topics["numbers"], 1)
    text, last = TEXT.replace("'fail'", "'fail', max_records = 2"), len(QUERIES) - 2
    site.send(2 * last + 2)
    site.run(text)
    assert {note_of(site.home / f"{query}.0")["batch"] for query in QUERIES} == {last}
    saved = tmp_path / "saved"
    shutil.copytree(site.home, saved)
    expected = site.rows()
    for batch in range(last + 1):
        for step in STEPS:
            shutil.rmtree(site.home)
            shutil.copytree(saved, site.home)
            for query in QUERIES:
                checkpoint_at(site.home / f"{query}.0", batch, step)
            if batch < last:
                assert set(site.refusal(text)) == set(QUERIES), (batch, step)
                assert site.rows() == expected
                continue
            # The newest batch again, or the next one.
            if step == "committed":
                site.send(1)
            site.run(text)
            assert site.is_exact()
