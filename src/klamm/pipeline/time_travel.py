"""A topic as it was: all records before a moment, or, of a table, the newest record of each key before it."""

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
    """A batch of what a topic held `at` a moment; with `newest` one row per key, without deleted ones.

    A moment is a time (datetime, ISO text, or milliseconds since 1970), or the offset of each partition at which to
    stop: `{0: 120, 1: 95}`. By time each partition ends before its first record that is as young. `options` are
    those of a read: `kafka.bootstrap.servers` and the like.
    """
    given = {**(options or {}), "subscribe": topic, **ending_options(topic, at)}
    found = spark.read.format("klamm").options(**{name: str(value) for name, value in given.items()}).load()
    return newest_by_key(found) if newest else found


def ending_options(topic: str, at: At) -> dict[str, str]:
    """The options of a read that ends at a moment."""
    if isinstance(at, Mapping):
        if not at:
            raise ConfigError("a moment in offsets names every partition: {0: 120, 1: 95}")
        return {"endingOffsets": json.dumps({topic: {str(part): int(offset) for part, offset in at.items()}})}
    return {"endingTimestamp": str(to_millis(at))}


def to_millis(at: dt.datetime | str | int) -> int:
    """A time in milliseconds since 1970; without a zone it is UTC."""
    if isinstance(at, int):
        return at
    try:
        moment = dt.datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        raise ConfigError(f"{at!r} is no time: write 2026-05-01T12:00:00Z, or milliseconds since 1970") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


def newest_by_key(records: DataFrame) -> DataFrame:
    """The newest record of each key, without deleted ones; a key lives in one partition, so offsets order it."""
    from pyspark.sql import functions  # noqa: PLC0415 - an extra

    newest = functions.expr("max_by(struct(*), offset) AS newest")
    return records.where("key IS NOT NULL").groupBy("key").agg(newest).select("newest.*").where("value IS NOT NULL")
