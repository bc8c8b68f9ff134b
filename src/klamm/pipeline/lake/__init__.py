"""Rows in a lake: Parquet and other files, Delta and Iceberg tables, written by a pipeline exactly once.

    sinks             opens the sink that a statement names
    file_sink         a batch as plain files, by Spark's own writers
    folder_log        plain files: which batch is decided, its files, and moving them into place
    parquet_writer    what a task writes for Delta and Iceberg: Parquet files from Arrow, and a line for each of them
    delta, iceberg    commits such files to a table, with the batch's number inside the commit
    compaction        few large files out of many small ones, on request
    folder_exchange   replaces one folder by another atomically

Every write has a name (app) and a number (batch): a batch that is in the table is not written again. Only this package
handles these formats. Spark runs the tasks; rows never pass through the driver. `core.lake_tables` is the pure part.
"""
