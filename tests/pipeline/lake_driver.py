"""A Spark driver of its own, to be killed: files into a table of a lake, one file a batch.

python lake_driver.py FORMAT INPUT TABLE CHECKPOINT [POINT FILE]

At the POINT of its second batch it makes FILE, and waits for its end.
"""

import sys
import time
from pathlib import Path

from klamm.pipeline import session
from klamm.pipeline.core.lake_tables import DELETED, LakeTable
from klamm.pipeline.lake import folder_log
from klamm.pipeline.lake.delta import DeltaSink
from klamm.pipeline.lake.file_sink import FileSink
from klamm.pipeline.lake.folder_log import FolderLog
from klamm.pipeline.lake.iceberg import IcebergSink
from klamm.pipeline.lake.sinks import open_sink, write_checked
from klamm.pipeline.query_checkpoint import QueryCheckpoint

POINTS = {
    "parquet": {
        "begun": (FileSink, "_stage", False),
        "written": (FileSink, "_stage", True),
        "before-the-decision": (FolderLog, "_decide", False),
        "decided": (FolderLog, "_finish", False),
        "first-file-moved": (folder_log, "_move", True),
        "moved": (FolderLog, "_finish", True),
    },
    "delta": {
        "begun": (DeltaSink, "_ensure_table", True),
        "written": (DeltaSink, "_commit", False),
        "committed": (DeltaSink, "_commit", True),
    },
    "iceberg": {
        "begun": (IcebergSink, "_ensure_table", True),
        "written": (IcebergSink, "_commit", False),
        "committed": (IcebergSink, "_commit", True),
    },
    "delta-upsert": {
        "begun": (DeltaSink, "_ensure_table", True),
        "written": (DeltaSink, "_merge", False),
        "committed": (DeltaSink, "_merge", True),
    },
    "iceberg-upsert": {
        "begun": (IcebergSink, "_ensure_table", True),
        "written": (IcebergSink, "_commit", False),
        "committed": (IcebergSink, "_commit", True),
    },
}
"""Where a driver dies: what is called then, and whether it has been done."""


def wait_at(kind, point, file):
    """Stay at a point from now on."""
    owner, name, after = POINTS[kind][point]
    original = getattr(owner, name)

    def call(*args, **keywords):
        if after:
            original(*args, **keywords)
        Path(file).touch()
        time.sleep(3600)

    setattr(owner, name, call)


def main() -> None:
    kind, source, table, checkpoint, *death = sys.argv[1:]
    spark = session(
        "driver",
        master="local[2]",
        progress=False,
        config={"spark.ui.enabled": False, "spark.driver.host": "127.0.0.1", "spark.log.level": "OFF"},
    )
    sink = open_sink(LakeTable("audit", kind.removesuffix("-upsert"), table, partition_by=("part",)))

    def save(rows, batch):
        if batch == 1 and death:
            wait_at(kind, *death)
        if kind.endswith("-upsert"):
            # Beside its rows each batch adds the key -1, -2 ... and deletes that of the batch before.
            added = spark.createDataFrame([(-batch - 1, "p0", False), (-batch, "p0", True)], [*rows.columns, DELETED])
            rows = rows.selectExpr("*", f"false AS {DELETED}").unionAll(added)
        keys = ["n"] if kind.endswith("-upsert") else []
        write_checked(sink, rows, "app", batch, QueryCheckpoint.at(checkpoint), keys)

    stream = spark.readStream.schema("n bigint, part string").option("maxFilesPerTrigger", "1").parquet(source)
    writing = stream.writeStream.foreachBatch(save).option("checkpointLocation", checkpoint)
    writing.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
