"""Where a bounded read begins and ends: a word, a time, how long ago, or offsets. Pure."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Mapping
from contextlib import suppress

OffsetBound = str | int | dt.datetime | dt.timedelta | Mapping[int, int]
"""What `read_topic` takes for `start` and `end`."""

WORDS = ("earliest", "latest")

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)
_ALLOWED = (
    '"earliest", "latest", a datetime with a timezone, a timedelta (that long ago), whole milliseconds since 1970,'
    " or a dict of partitions to offsets"
)


def parse_read_bound(given: object, what: str, now_ms: int) -> str | int | dict[int, int]:
    """A word, a time in milliseconds or offsets by partition; `what` names the argument in errors."""
    if isinstance(given, str):
        if given in WORDS:
            return given
        raise ValueError(f"{what}={given!r} is not known: write {_ALLOWED}")
    if isinstance(given, dt.datetime):
        if given.utcoffset() is None:
            raise ValueError(
                f"{what}={given!r} has no timezone: write .astimezone() for local time,"
                f" .replace(tzinfo=datetime.UTC) for UTC"
            )
        return _milliseconds(given - _EPOCH)
    if isinstance(given, dt.timedelta):
        if given < dt.timedelta():
            raise ValueError(f"{what}={given!r} is in the future: a timedelta is how long ago, and not negative")
        return max(now_ms - given // _MILLISECOND, 0)
    if isinstance(given, Mapping):
        return {
            _whole(key, f"a partition of {what}"): _whole(offset, f"an offset of {what}")
            for key, offset in given.items()
        }
    return _whole(given, what)


def _milliseconds(since: dt.timedelta) -> int:
    """Rounded up: ListOffsets compares whole milliseconds, and a record just before the time must not count."""
    return max(-(-since // _MILLISECOND), 0)


def _whole(given: object, what: str) -> int:
    """A number that is not negative: in ListOffsets -1 is the end and -2 the beginning."""
    if not isinstance(given, bool):  # a bool is an int in Python
        with suppress(TypeError):
            number = operator.index(given)  # type: ignore[arg-type]
            if number < 0:
                raise ValueError(f"{what}={number} is negative: write {_ALLOWED}")
            return number
    raise TypeError(f"{what}={given!r} is a {type(given).__name__}: write {_ALLOWED}")
