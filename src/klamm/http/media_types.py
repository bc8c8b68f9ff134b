"""Which media types a service takes, and which one it answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from klamm.http.refusals import HttpRefusal

_ANY: Final = ("*/*", "*")
"""`*` is no media range of the standard; Java's URLConnection and others send it."""


def content_type(headers: Mapping[str, str]) -> str:
    """Return the media type of a body without its parameters; empty when it has none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def check_content_type(headers: Mapping[str, str], taken: Sequence[str]) -> None:
    """Refuse bodies of other media types with 415; a body without one is taken."""
    given = content_type(headers)
    if given and given not in taken:
        raise HttpRefusal(415, f"HTTP 415 Unsupported Media Type: {given}; send {taken[0]}")


def choose_content_type(headers: Mapping[str, str], given: Sequence[str]) -> str:
    """Return the media type of the answer, the first of `given` by default; 406 when the client takes none of them."""
    accepted = headers.get("accept", "")
    if not accepted or accepted in _ANY:
        return given[0]
    chosen, best = "", 0.0
    for media_range in accepted.split(","):
        name, *parameters = (part.strip().lower() for part in media_range.split(";"))
        quality = _parse_quality(parameters)
        match = name if name in given else given[0] if name in _ANY or name == "application/*" else ""
        # Of equal weight the first counts, as clients list what they prefer first.
        if match and quality > best:
            chosen, best = match, quality
    if not chosen:
        raise HttpRefusal(406, f"HTTP 406 Not Acceptable: {accepted[:200]}; accept {given[0]}")
    return chosen


def _parse_quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0
