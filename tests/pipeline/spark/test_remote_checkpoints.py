"""The ledger on checkpoints that only Spark's file systems reach, here by Hadoop's FileSystem of local files."""

import pytest

from klamm.pipeline.core.batch_ledger import BatchPosition, LedgerError, LedgerStep, SinkBatch
from klamm.pipeline.query_checkpoint import QueryCheckpoint
from klamm.pipeline.sql.adoption import _write_checkpoint
from klamm.pipeline.sql.jdbc_positions import HadoopFolder

SINK = "klamm-pipeline-x.copies.0"


def test_a_remote_checkpoint_is_compared_and_written(spark, tmp_path):
    folder = HadoopFolder(spark, f"file://{tmp_path}/far")
    checkpoint = QueryCheckpoint(folder)
    assert (checkpoint.next_batch(), checkpoint.read_written()) == (0, (None, SinkBatch()))
    for batch, end in enumerate((2, 4)):
        folder.write("offsets", str(batch), f'v1\n{{}}\n{{"t":{{"0":{end}}}}}')
    folder.write("commits", "0", "v1\n{}")
    position = BatchPosition.of([{"t": {"0": 4}}])
    assert (checkpoint.next_batch(), checkpoint.position(1)) == (1, position)
    assert checkpoint.check_batch(SINK, SinkBatch(1, position.digest), 1) is LedgerStep.REPLAY
    for batch in (0, 1):  # the file is replaced, which Hadoop's rename does not do
        checkpoint.record_written(SINK, batch)
    assert checkpoint.read_written() == (SINK, SinkBatch(1, position.digest))
    with pytest.raises(LedgerError, match="has written batches up to 1"):
        checkpoint.check_batch(SINK, SinkBatch(0), 2)
    with pytest.raises(LedgerError, match="with other offsets"):
        checkpoint.check_batch(SINK, SinkBatch(1, "other"), 2)
    checkpoint.forget_written()
    assert checkpoint.check_batch(SINK, SinkBatch(), 2) is LedgerStep.CONTINUE

    # What an adoption writes, also over a part of it that a crash has left.
    adopted = HadoopFolder(spark, f"file://{tmp_path}/adopted")
    adopted.write("offsets", "0", "half")
    _write_checkpoint(adopted, position, "copies")
    written = QueryCheckpoint(adopted)
    assert (written.next_batch(), written.position(0)) == (1, position)
