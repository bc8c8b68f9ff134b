"""The connector's pure half: functions of their arguments, without clock, thread, socket or file.

connector_options    the options of source and sink
offsets              positions, ranges for tasks, limits per batch
sink_commits         how a batch of many transactions becomes one decision
lake_tables          the table that a sink's statement describes; which small files are merged
derived_schemas      schemas made of columns
"""
