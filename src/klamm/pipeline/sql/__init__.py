"""Pipelines as SQL: a file of statements becomes streaming queries from topic to topic.

    problems, tokens, parser, statements    pure: text to statements, every refusal with line and column
    types, options                          pure: which column types and which WITH options there are
    reading                                 pure: which names a SELECT reads, and what state it needs
    graph                                   pure: statements in the order they feed each other
    identity, drawing                       pure: what a checkpoint was made by; what a change means for it; the picture
    rows                                    pure: expressions between a record's bytes and columns
    topics, folders                         where rows come from and go to: a cluster, or a folder in tests
    engine, runner, status                  queries on Spark; keeping them running; what they tell others

SELECTs are Spark's: they are passed on as they were written. `compile_text` is the whole pure half; it needs neither
Spark nor a cluster.
"""

from klamm.pipeline.sql.graph import Pipeline, compile_text
from klamm.pipeline.sql.problems import Problem, SqlError

__all__ = ["Pipeline", "Problem", "SqlError", "compile_text"]
