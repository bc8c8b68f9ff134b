"""The filter language of `--where` and of the console: expressions over one record, checked before they run. Pure.

expression       parses and compiles `value.price > 10 and key in ("a", "b")`
functions        the functions an expression may call
record_view      a record while its filter runs: text and JSON on demand
missing_fields   fields that an expression names and records lack
"""

from klamm.client.filter.expression import Filter, FilterError, compile_filter

__all__ = ["Filter", "FilterError", "compile_filter"]
