"""ksqlDB's functions that Spark does not have: by another name, within other calls, or with the line to write. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RENAMED: Final = {
    "ARRAY_CONCAT": "concat",
    "ARRAY_LENGTH": "size",
    "AS_MAP": "map_from_arrays",
    "AS_VALUE": "",
    "CORRELATION": "corr",
    "COUNT_DISTINCT": "approx_count_distinct",
    "EXTRACTJSONFIELD": "get_json_object",
    "FORMAT_DATE": "date_format",
    "FORMAT_TIMESTAMP": "date_format",
    "FROM_DAYS": "date_from_unix_date",
    "GENERATE_SERIES": "sequence",
    "JSON_KEYS": "json_object_keys",
    "PARSE_DATE": "to_date",
    "PARSE_TIMESTAMP": "to_timestamp",
    "REGEXP_SPLIT_TO_ARRAY": "split",
    "STDDEV_SAMPLE": "stddev_samp",
    "URL_DECODE_PARAM": "url_decode",
    "URL_ENCODE_PARAM": "url_encode",
}


@dataclass(frozen=True, slots=True)
class Wrapped:
    """What replaces a call: text before its first argument, behind it, and behind the last one."""

    head: str
    behind_first: str = ""
    tail: str = ""
    arguments: int = 2
    takes: str = "a time and a pattern; times are UTC"


_URL: Final = "a URL"


def _url_part(part: str) -> Wrapped:
    return Wrapped("try_parse_url", f", '{part}'", arguments=1, takes=_URL)


WRAPPED: Final = {
    "DATETOSTRING": Wrapped("date_format(date_from_unix_date", ")", takes="a number of days and a pattern"),
    "STRINGTODATE": Wrapped("unix_date(to_date", tail=")", takes="a text and a pattern"),
    "STRINGTOTIMESTAMP": Wrapped("unix_millis(to_timestamp", tail=")"),
    "TIMESTAMPTOSTRING": Wrapped("date_format(timestamp_millis", ")"),
    "URL_EXTRACT_FRAGMENT": _url_part("REF"),
    "URL_EXTRACT_HOST": _url_part("HOST"),
    "URL_EXTRACT_PARAMETER": Wrapped("try_parse_url", ", 'QUERY'", takes="a URL and a name"),
    "URL_EXTRACT_PATH": _url_part("PATH"),
    "URL_EXTRACT_PROTOCOL": _url_part("PROTOCOL"),
    "URL_EXTRACT_QUERY": _url_part("QUERY"),
}
_MINUS: Final = "write at - INTERVAL '1 hour', with the column and the duration"
_MASKED: Final = "write concat(repeat('x', 4), substring(text, 5)), or regexp_replace"
_NUMBER_OF_BYTES: Final = "write cast(conv(hex(bytes), 16, 10) AS BIGINT) for a number without a sign"
_NO_TIME_OF_DAY: Final = "Spark has no time of a day: write date_format(at, 'HH:mm:ss') of a TIMESTAMP, or keep a text"

REFUSED: Final = {
    "ATTR": "write CASE WHEN count(DISTINCT x) = 1 THEN max(x) END",
    "BIGINT_FROM_BYTES": _NUMBER_OF_BYTES,
    "CONVERT_TZ": "write convert_timezone('from', 'to', at)",
    "CUBE_EXPLODE": "write GROUP BY CUBE (a, b)",
    "DATESUB": "write date_sub(day, n)",
    "DOUBLE_FROM_BYTES": "call a function of your own: CREATE FUNCTION name RETURNS DOUBLE AS 'module:function'",
    "ENTRIES": "write map_entries(m), whose fields are key and value; array_sort(map_entries(m)) sorts them",
    "FIELD": "write array_position(array(a, b, c), x)",
    "FORMAT_TIME": _NO_TIME_OF_DAY,
    "FROM_BYTES": "write hex(bytes), base64(bytes) or decode(bytes, 'utf-8')",
    "GEO_DISTANCE": (
        "write 6371 * acos(least(1, sin(radians(a_lat)) * sin(radians(b_lat)) + cos(radians(a_lat)) *"
        " cos(radians(b_lat)) * cos(radians(b_lon - a_lon)))) for kilometres"
    ),
    "HISTOGRAM": "group by the value: SELECT x, count(*) AS n ... GROUP BY x",
    "INT_FROM_BYTES": _NUMBER_OF_BYTES,
    "IS_JSON_STRING": "write get_json_object(text, '$') IS NOT NULL",
    "JSON_ARRAY_CONTAINS": "write array_contains(from_json(text, 'ARRAY<STRING>'), x)",
    "JSON_CONCAT": "write to_json(map_concat(from_json(a, 'MAP<STRING, STRING>'), from_json(b, ...)))",
    "JSON_ITEMS": "write from_json(text, 'ARRAY<STRING>')",
    "JSON_RECORDS": "write from_json(text, 'MAP<STRING, STRING>')",
    "MAP_UNION": "write map_concat(a, b), with SET spark.sql.mapKeyDedupPolicy = 'LAST_WIN' if both may have a key",
    "MASK_KEEP_LEFT": _MASKED,
    "MASK_KEEP_RIGHT": _MASKED,
    "MASK_LEFT": _MASKED,
    "MASK_RIGHT": _MASKED,
    "PARSE_TIME": _NO_TIME_OF_DAY,
    "SPLIT_TO_MAP": "write str_to_map(text, entry, key), whose delimiters are regular expressions",
    "TIMEADD": _NO_TIME_OF_DAY,
    "TIMESTAMPSUB": _MINUS,
    "TIMESUB": _NO_TIME_OF_DAY,
    "TOPK": "write slice(sort_array(collect_list(x), false), 1, n)",
    "TOPKDISTINCT": "write slice(sort_array(collect_set(x), false), 1, n)",
    "TO_BYTES": "write to_binary(text, 'hex'), 'base64' or 'utf-8'",
    "TO_JSON_STRING": "write to_json(x) of a struct, an array or a map; it leaves out fields that are null",
    "URL_EXTRACT_PORT": "write cast(regexp_extract(url, '^[^/]*//[^/]*:([0-9]+)', 1) AS INT)",
}
HIGHER_ORDER: Final = frozenset(
    [
        *("AGGREGATE", "ARRAY_SORT", "EXISTS", "FILTER", "FORALL", "MAP_FILTER", "MAP_ZIP_WITH", "REDUCE"),
        *("TRANSFORM", "TRANSFORM_KEYS", "TRANSFORM_VALUES", "ZIP_WITH"),
    ]
)
"""Spark's functions that take a lambda."""
ARRAYS: Final = frozenset(
    [
        *("ARRAY", "ARRAY_CONCAT", "ARRAY_DISTINCT", "ARRAY_EXCEPT", "ARRAY_INTERSECT", "ARRAY_REMOVE", "ARRAY_SORT"),
        *("ARRAY_UNION", "COLLECT_LIST", "COLLECT_SET", "GENERATE_SERIES", "JSON_KEYS", "MAP_KEYS", "MAP_VALUES"),
        *("REGEXP_EXTRACT_ALL", "REGEXP_SPLIT_TO_ARRAY", "SLICE", "SORT_ARRAY", "SPLIT", "TRANSFORM"),
    ]
)
"""Functions of either that return an array."""
