"""Pipelines as SQL: a file of statements becomes streaming queries from topic to topic.

    core                                    pure: the compiler of pipeline files, identities, Spark expressions as text
    registry_schemas, registry_functions    schemas of a registry as columns; Spark functions that decode and encode
    jdbc, jdbc_positions                    the polling loop of a database source, and where its positions are kept
    topics, folder_topics                   where rows come from and go to: a cluster, or a folder in tests
    topic_views, query_writers              the views that SELECTs read; what writes their rows in numbered batches
    engine, runner, supervisor              queries on Spark; a run of a pipeline; keeping its queries running
    running_query, query_status, status     one query in its process; what is published of it; status files
    object_store_identity, topic_lag        checkpoints on a shared file system; how far queries are behind
    run_plan                                what a run means for state, and what reading again costs
    snapshots                               named restore points
    rebuilds                                a new generation beside the rows of the one before
    state_folders                           where a pipeline keeps its state: by its name and its cluster
    query_ledger, adoption                  whether a checkpoint wrote what its sink has; continuing where the sink ends
    pipeline_registry                       the cluster's record of pipelines: their folders, and their runs
    backfill, dead_letters                  batch jobs over a range of offsets; bad records and their redrive
    spark_jvm                               the JVM objects that PySpark does not expose

SELECTs are Spark's: they are passed on as written, except for `FOR SYSTEM_TIME AS OF`. `compile_text` needs neither
Spark nor a cluster.
"""

from klamm.pipeline.sql.core.graph import Pipeline, compile_text
from klamm.pipeline.sql.core.problems import SqlError, SqlProblem

__all__ = ["Pipeline", "SqlError", "SqlProblem", "compile_text"]
