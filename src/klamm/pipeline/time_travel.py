"""Reads a topic as of a time or an offset: all records before it, or the newest record of each key."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from klamm.model.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

At = dt.datetime | str | int | Mapping[int, int]


def as_of(
    spark: SparkSession, topic: str, at: At, *, newest: bool = False, options: Mapping[str, Any] | None = None
) -> DataFrame:
    """Return the records that a topic held `at` a time; with `newest` one row per key, without deleted keys.

    `at` is a time (datetime, ISO text, or milliseconds since 1970), or the end offset of each partition:
    `{0: 120, 1: 95}`. By time each partition ends before its first record with that timestamp or a later one.
    `options` are those of a read: `kafka.bootstrap.servers` and the like.
    """
    read_options = {**(options or {}), "subscribe": topic, **ending_options(topic, at)}
    records = spark.read.format("klamm").options(**{name: str(value) for name, value in read_options.items()}).load()
    return newest_by_key(records) if newest else records


def ending_options(topic: str, at: At) -> dict[str, str]:
    """Return the options of a read that ends at a time or at offsets."""
    if isinstance(at, Mapping):
        if not at:
            raise ConfigError("offsets name every partition: {0: 120, 1: 95}")
        return {"endingOffsets": json.dumps({topic: {str(part): int(offset) for part, offset in at.items()}})}
    return {"endingTimestamp": str(to_millis(at))}


def to_millis(at: dt.datetime | str | int) -> int:
    """Return a time in milliseconds since 1970; without a zone it is UTC."""
    if isinstance(at, int):
        return at
    try:
        moment = dt.datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        raise ConfigError(f"{at!r} is not a time: write 2026-05-01T12:00:00Z, or milliseconds since 1970") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    # Integer arithmetic: timestamp() is a float, and rounding could move the end by a millisecond.
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


def newest_by_key(records: DataFrame) -> DataFrame:
    """Return the newest record of each key, without deleted keys. A key is in one partition, so offsets order it."""
    from pyspark.sql import functions  # noqa: PLC0415 - an extra

    # max_by aggregates without a sort or a window: one pass, with partial aggregation.
    newest = functions.expr("max_by(struct(*), offset) AS newest")
    return records.where("key IS NOT NULL").groupBy("key").agg(newest).select("newest.*").where("value IS NOT NULL")
