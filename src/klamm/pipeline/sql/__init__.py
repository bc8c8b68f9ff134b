"""Pipelines as SQL: a file of statements becomes streaming queries from topic to topic.

    problems, tokens, parser, statements    pure: text to statements, every refusal with line and column
    types, options                          pure: which column types and which WITH options there are
    reading, moments                        pure: which names a SELECT reads, what state it needs; tables as of a time
    graph, checks                           pure: statements in the order they feed each other; whether they make sense
    identity, drawing                       pure: what a checkpoint was made by; what a change means for it; the picture
    rows, secrets                           pure: expressions between a record's bytes and columns; what is not shown
    schemas, encodings                      a registry's schemas: columns of them, them of columns; functions for Spark
    cursors, positions, jdbc                rows of databases: which range is next (pure), where that is kept, the loop
    topics, folders                         where rows come from and go to: a cluster, or a folder in tests
    engine, runner, status                  queries on Spark; keeping them running; what they tell others

SELECTs are Spark's: they are passed on as they were written, but for `FOR SYSTEM_TIME AS OF`. `compile_text` is the
whole pure half; it needs neither Spark nor a cluster.
"""

from klamm.pipeline.sql.core.graph import Pipeline, compile_text
from klamm.pipeline.sql.core.problems import Problem, SqlError

__all__ = ["Pipeline", "Problem", "SqlError", "compile_text"]
