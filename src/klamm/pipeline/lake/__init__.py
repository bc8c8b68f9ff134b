"""Rows in a lake: Parquet and other files, Delta and Iceberg tables, written by a pipeline exactly once.

    tables          pure: what a sink's statement says of its table; which small files become one
    ledger          plain files: which batch is decided, which files it has, and moving them into place
    files           a batch as plain files, by Spark's own writers
    tasks           what a task writes for Delta and Iceberg: Parquet files from Arrow, and a line for each of them
    delta, iceberg  committing such files to a table, with the batch's number inside the commit
    swap            plain files: one folder for another at once
    compaction      few large files out of many small ones, on request
    sinks           the one of these that a statement names

Every write has a name (app) and a number (batch): a batch that is there is not written again, whoever asks. No room but
this one knows these formats; Spark runs the tasks, and rows never pass through the driver.
"""
