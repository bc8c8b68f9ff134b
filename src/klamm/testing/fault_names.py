"""Parsing of the arguments of faults: an error, an API, a time, a count. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta

from klamm.model.errors import ErrorCode
from klamm.protocol.apis import BY_NAME, Api

Seconds = float | timedelta


def parse_error(error: str | int) -> ErrorCode:
    """Return the error of a name, in either case, or a number; ValueError suggests the nearest name."""
    # bool is an int in Python, and refuse(True) is a mistake.
    if isinstance(error, bool) or not isinstance(error, str | int):
        raise TypeError(f'an error is a name or a number, e.g. "NOT_LEADER_OR_FOLLOWER" or 6, not {error!r}')
    if isinstance(error, str):
        name = error.strip().upper().replace("-", "_")
        if name not in ErrorCode.__members__:
            raise ValueError(f"there is no error {error!r}{_nearest(name, ErrorCode.__members__)}")
        code = ErrorCode[name]
    else:
        try:
            code = ErrorCode(error)
        except ValueError:
            raise ValueError(f"there is no error {error}: write a name, e.g. NOT_LEADER_OR_FOLLOWER") from None
    if code is ErrorCode.NONE:
        raise ValueError("NONE is no error: heal() ends injected errors")
    return code


def parse_api(api: str | int | Api) -> Api:
    """Return the API of a name, in any spelling, or a key; ValueError suggests the nearest name."""
    if isinstance(api, Api):
        return api
    if isinstance(api, bool) or not isinstance(api, str | int):
        raise TypeError(f'an API is a name or a key, e.g. "Produce" or 0, not {api!r}')
    if isinstance(api, str):
        known = {name.lower(): known_api for name, known_api in BY_NAME.items()}.get(
            # ListOffsets, listoffsets and list_offsets: Kafka's name, and the one of the module here.
            api.strip().lower().replace("_", "")
        )
    else:
        known = next((known_api for known_api in BY_NAME.values() if known_api.key == api), None)
    if known is None:
        hint = _nearest(api, BY_NAME) if isinstance(api, str) else ': write a name, e.g. "Produce"'
        raise ValueError(f"there is no API {api!r}{hint}")
    return known


def parse_seconds(wait: Seconds) -> float:
    """Return the delay of a request in seconds."""
    if isinstance(wait, timedelta):
        wait = wait.total_seconds()
    if isinstance(wait, bool) or not isinstance(wait, int | float):
        raise TypeError(f"a wait is a number of seconds or a timedelta, not {wait!r}")
    if not 0 <= wait < math.inf:
        raise ValueError(f"a wait of {wait} seconds: write 0 or more")
    return float(wait)


def parse_times(times: int | None) -> int | None:
    """Return how often requests are refused; None is until healed."""
    if times is None:
        return None
    if isinstance(times, bool) or not isinstance(times, int):
        raise TypeError(f"times is a whole number, or None for until healed; not {times!r}")
    if times < 1:
        raise ValueError(f"times={times}: write 1 or more, or None for until healed")
    return times


def _nearest(name: str, known: Iterable[str]) -> str:
    # Here, because only a misspelt name needs it, and importing it takes longer than a fault.
    import difflib

    by_lower = {known_name.lower(): known_name for known_name in known}
    near = [by_lower[close_match] for close_match in difflib.get_close_matches(name.lower(), by_lower, 3)]
    return f"; did you mean {', '.join(near)}?" if near else ""
