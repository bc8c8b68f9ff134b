"""Pure parts of `pipeline.tables`: no clock, thread, socket or file.

field_types                 declared column types as a tree, and their names in DuckDB
json_values, text_values    the rules by which JSON and text become values of a type, one record at a time
time_formats                times as a statement's `timestamp_format` spells them
change_envelopes            rows and deletions of change logs, by the rules of `sql.core.change_formats`
csv_line                    the fields of a value in CSV
inferred_columns            columns of JSON values that no statement declares
answer_changes              what differs between two answers to the same query
"""
