"""The connector's pure half: functions of their arguments, which know no clock, thread, socket or file.

connector_options    the options of source and sink
offsets              positions, ranges for tasks, limits per batch
sink_commits         how a batch of many transactions becomes one decision
lake_tables          what a sink's statement says of its table; which small files become one
registry_framing     which schema a record names
derived_schemas      schemas made of columns
"""
