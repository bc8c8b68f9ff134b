"""Tables that answer: the current rows of a pipeline's tables, by SQL, from their topics and without Spark.

    core                                pure: types, the rules from bytes to values, differences of answers
    arrow_columns, value_readers        arrays of declared types; values of each format as columns
    record_reader, table_columns        records of a table as rows; which columns a table has
    store, follower                     rows and positions in DuckDB; the thread that reads the topics
    queries, live_tables                one SELECT with limits; `open_tables`, pull and push queries
    http, http_server, plain_values     the same over HTTP; values as JSON has them
    topic_tables                        ranges of any topics as tables of one query: `klamm sql`

A client of the cluster: it imports neither PySpark nor a broker. Needs `klamm[sql]`, and `klamm[http]` to serve.
"""
