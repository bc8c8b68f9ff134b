"""The compiler of pipeline files, and other pure parts of `pipeline.sql`: no clock, thread, socket or file.

problems, tokens, parser, statements    text to statements, every error with line and column
column_types, statement_options         which column types and which WITH options there are
query_sources, temporal_joins           which names a SELECT reads, what state it needs; tables as of a time
graph, statement_checks                 statements in the order they feed each other; whether they are valid
identity, graph_rendering               what a checkpoint was made by; what a change means for it; the graph as text
row_expressions, secrets                expressions between a record's bytes and columns; values that are not shown
jdbc_cursors, query_totals              the next range of a database table; numbers of a query since it was started
"""
